// Events of the driver for the pool's streams (streams.h).

#pragma once

#include <memory>

#include "dtr_alloc/pool/csrc/cuda/driver.h"
#include "dtr_alloc/pool/csrc/streams.h"

namespace dtr::cuda {

std::unique_ptr<StreamEvents> make_events(std::shared_ptr<PrimaryContext> context);

}  // namespace dtr::cuda
