#include "runtime/csrc/live/operators/libraries.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <iterator>

namespace dtr {
namespace {

using c10::Argument;
using c10::TypeKind;

// Namespaces of which every operator is, or is a part of, a collective.
constexpr std::string_view kCollectives[] = {
    "c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem",
    "fsdp", "_dtensor"};

// Of torch's compilers, which say among themselves what the operators do.
constexpr std::string_view kCompilers[] = {"prims", "rngprims", "debugprims", "inductor"};

// A library's own collectives have one of these in their names, or name the group they talk to.
constexpr std::string_view kWordsOfCollectives[] = {
    "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter",
    "all_to_all", "alltoall",  "broadcast_", "barrier",   "send_recv"};
constexpr std::string_view kGroups[] = {"group", "group_name", "process_group", "pg"};

std::string_view space_of(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  return name.substr(0, name.find("::"));
}

// Of a tensor, a list of them, or either of these optional a recipe finds the tensors.
bool is_odd(const Argument& argument) {
  const c10::Type& list = inside(*argument.type(), TypeKind::OptionalType);
  const c10::Type& item = inside(inside(list, TypeKind::ListType), TypeKind::OptionalType);
  return holds_tensors(item) && item.kind() != TypeKind::TensorType;
}

}  // namespace

bool holds_tensors(const c10::Type& type) {
  return type.kind() == TypeKind::TensorType ||
         std::ranges::any_of(type.containedTypes(),
                             [](const auto& inner) { return holds_tensors(*inner); });
}

const c10::Type& inside(const c10::Type& type, TypeKind kind) {
  return type.kind() == kind ? *type.containedTypes()[0] : type;
}

bool is_written(const Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool is_of_library(const c10::FunctionSchema& schema) {
  const std::string_view space = space_of(schema);
  return space != "aten" && space != "dtr_alloc";
}

bool is_collective(const c10::FunctionSchema& schema) {
  if (std::ranges::find(kCollectives, space_of(schema)) != std::end(kCollectives)) return true;
  const std::string_view name = schema.name();
  const auto in_name = [&](auto word) { return name.find(word) != std::string_view::npos; };
  const auto names_group = [](const Argument& argument) {
    return std::ranges::find(kGroups, argument.name()) != std::end(kGroups);
  };
  return (is_of_library(schema) && std::ranges::any_of(kWordsOfCollectives, in_name)) ||
         std::ranges::any_of(schema.arguments(), names_group);
}

const char* obstacle_of(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  const auto& results = schema.returns();
  if (is_collective(schema)) return "talks to other processes";
  if (std::ranges::find(kCompilers, space_of(schema)) != std::end(kCompilers)) {
    return "belongs to torch's compilers";
  }
  if (schema.is_vararg() || schema.is_varret()) return "has a schema that leaves arguments open";
  if (std::ranges::any_of(arguments, is_written)) return "writes an argument";
  const auto shares = [](const Argument& one) { return one.alias_info() != nullptr; };
  if (std::ranges::any_of(results, shares)) return "returns the memory of an argument";
  const auto several = [](const Argument& one) {
    return holds_tensors(*one.type()) &&
           inside(*one.type(), TypeKind::OptionalType).kind() != TypeKind::TensorType;
  };
  if (std::ranges::any_of(results, several)) return "returns a list of tensors, of any length";
  const auto takes_generator = [](const Argument& one) {
    return inside(*one.type(), TypeKind::OptionalType).kind() == TypeKind::GeneratorType;
  };
  if (std::ranges::any_of(arguments, takes_generator)) return "is given a generator";
  if (std::ranges::any_of(arguments, is_odd)) return "takes tensors in a structure";
  return nullptr;
}

bool is_named(const std::vector<std::string>& patterns, std::string_view name) {
  const std::string_view without_overload = name.substr(0, name.find('.'));
  return std::ranges::any_of(patterns, [&](std::string_view pattern) {
    if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
    return pattern == name || pattern == without_overload;
  });
}

}  // namespace dtr
