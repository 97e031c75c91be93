#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"
#include "shardwise/runtime/spmd/executable.h"

// The studies of "PyTorch/XLA SPMD: Scale Up Model Training and Serving with Automatic
// Parallelization" (the scalability part), planned instead of run: nothing of a model is allocated.

namespace memory_report {

/// A GPT of one of the sizes of the study.
struct Model {
  std::string name;
  gpt::Sizes sizes;
};

/// From 124 million to 4 billion parameters, of a context of 1,024.
std::vector<Model> models();

double parameters(const gpt::Sizes& sizes);

/// One training step (loss, gradients, AdamW), planned.
struct Planned {
  std::size_t peak_bytes = 0;  ///< of the device that needs most
  double wire_bytes = 0;       ///< sent by one device
  double seconds = 0;          ///< to trace and plan
  double bubble = 0;           ///< share of a pipeline's trips that a stage waits

  /// Time of the step on a machine, by a model without measurements. Collectives and computing do
  /// not overlap.
  double modelled_seconds = 0;
  double compute_seconds = 0;  ///< the part of it without collectives

  /// Model FLOPS utilization in that time, as the study defines it: 6 operations for each parameter
  /// and token, over the peak of all devices.
  double modelled_mfu = 0;
};

/// The cut of the weights and the mesh: see gpt::Plan.
struct Layout {
  std::string name, mesh, plan;
  std::int64_t stages = 0, micro_batches = 0;  ///< of a pipeline of the layers; 0: no pipeline
};

/// Replicated, FSDP, tensor and 2-d layouts on this number of devices.
std::vector<Layout> layouts(std::int64_t devices);

/// Weights cut along one dim, 2-d, and a pipeline of 4 stages and 8 micro-batches. `devices` is a
/// multiple of 4.
std::vector<Layout> parallel_layouts(std::int64_t devices);

/// The layouts for which a mesh has the axes: data or fsdp, and model.
std::vector<Layout> layouts_on(const shardwise::Mesh& mesh);

Planned plan(const gpt::Sizes& sizes, const Layout& layout, gpt::Recompute recompute,
             const shardwise::Machine& machine);

/// FSDP by its own count, for a plan with weights cut along one dim: each device sends each weight
/// (n - 1) / n times in each of three collectives, two gathers and a reduce-scatter of gradients,
/// for each layer and for the rest. Computing and memory are the plan's. (Source: Zhao et al.,
/// arXiv 2304.11277.)
Planned counted_as_fsdp(Planned one_dim, const gpt::Sizes& sizes, std::int64_t devices,
                        const shardwise::Machine& machine);

/// The same step run, with zeros for weights: the peak that each device counted.
std::size_t measured_peak(const gpt::Sizes& sizes, const Layout& layout, gpt::Recompute recompute);

/// The largest batch, or the largest images, with which a training step of ResNet-50 fits.
struct Largest {
  std::string plan, mesh;  ///< see convnet::Plan
  std::int64_t batch = 0, image = 0;
  std::size_t peak_bytes = 0;  ///< of the device that needs most
};

/// `batch` images of `image` x `image`, three channels, a thousand classes, in f32.
std::size_t resnet_peak(const std::string& plan, const std::string& mesh, std::int64_t batch,
                        std::int64_t image);

/// For a given size of images, and for a given batch; in steps of a batch of 8 and of 32 pixels. 0
/// if nothing fits.
Largest largest_batch(const std::string& plan, const std::string& mesh, std::int64_t image,
                      std::size_t bytes);
Largest largest_image(const std::string& plan, const std::string& mesh, std::int64_t batch,
                      std::size_t bytes);

/// One bar of a chart.
struct Bar {
  std::string group, series;
  double value;
};

/// A bar chart, as SVG: one XML document that refers to nothing outside. Bars of one group stand
/// side by side; `limit` is a line across, if it is more than 0.
std::string bar_chart(std::string_view title, std::string_view unit, const std::vector<Bar>& bars,
                      double limit);

}  // namespace memory_report
