#include <algorithm>
#include <functional>

#include "convnet/training.h"
#include "study.h"

namespace memory_report {

namespace sw = shardwise;

namespace {

/// The largest number of steps for which `bytes_of`, which grows with it, is at most `bytes`; 0 if
/// none fits.
std::int64_t largest(const std::function<std::size_t(std::int64_t)>& bytes_of, std::size_t bytes) {
  std::int64_t fits = 0, too_large = 1;
  while (bytes_of(too_large) <= bytes) {
    fits = too_large;
    too_large *= 2;
  }
  while (too_large - fits > std::max<std::int64_t>(fits / 64, 1)) {
    const std::int64_t middle = fits + (too_large - fits) / 2;
    (bytes_of(middle) <= bytes ? fits : too_large) = middle;
  }
  return fits;
}

}  // namespace

std::size_t resnet_peak(const std::string& plan, const std::string& mesh_text, std::int64_t batch,
                        std::int64_t image) {
  const sw::Mesh mesh = sw::Mesh::parse(mesh_text);
  sw::Devices devices(mesh.size());
  convnet::Training training(
      devices, mesh, convnet::Plan(plan, mesh),
      {.depth = 50, .width = 64, .image = image, .channels = 3, .classes = 1000, .batch = batch});
  training.begin_abstract();
  const std::shared_ptr<const sw::Executable> step = training.plan_step();
  std::size_t peak = 0;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    peak = std::max(peak, step->memory(p).peak_bytes);
  }
  return peak;
}

Largest largest_batch(const std::string& plan, const std::string& mesh, std::int64_t image,
                      std::size_t bytes) {
  const auto peak = [&](std::int64_t steps) { return resnet_peak(plan, mesh, 8 * steps, image); };
  const std::int64_t steps = largest(peak, bytes);
  return {plan, mesh, 8 * steps, image, steps == 0 ? 0 : peak(steps)};
}

Largest largest_image(const std::string& plan, const std::string& mesh, std::int64_t batch,
                      std::size_t bytes) {
  const auto peak = [&](std::int64_t steps) { return resnet_peak(plan, mesh, batch, 32 * steps); };
  const std::int64_t steps = largest(peak, bytes);
  return {plan, mesh, batch, 32 * steps, steps == 0 ? 0 : peak(steps)};
}

}  // namespace memory_report
