// Whether torch's own fake mode in C++ is on in this thread.

#pragma once

#if __has_include(<c10/core/impl/FakeTensorModeTLS.h>)  // From torch 2.14 on.
#include <c10/core/impl/FakeTensorModeTLS.h>
#endif

namespace dtr {

inline bool fake_mode_is_on() {
#if __has_include(<c10/core/impl/FakeTensorModeTLS.h>)
  return c10::impl::FakeTensorModeTLS::get_state() != nullptr;
#else
  return false;
#endif
}

}  // namespace dtr
