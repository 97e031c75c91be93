#include "shardwise/runtime/program/detail/schedule.h"

#include <mutex>

#include "shardwise/runtime/program/detail/process_schedule.h"
#include "shardwise/runtime/program/detail/schedule_builder.h"

namespace shardwise {

struct Schedule::OfProcess {
  MemoryReuse reuse;
  std::mutex mutex;
  std::shared_ptr<const detail::ProcessSchedule> last;
};

std::shared_ptr<const detail::ProcessSchedule> Schedule::of_process(const Program& program,
                                                                    const Devices& devices) const {
  const std::lock_guard lock(of_process_->mutex);
  if (!of_process_->last || !of_process_->last->is_for(devices)) {
    of_process_->last = std::make_shared<const detail::ProcessSchedule>(
        program, first_step_, of_process_->reuse, devices);
  }
  return of_process_->last;
}

Schedule::Schedule(const Program& program, std::size_t first_step, const MemoryReuse& reuse)
    : first_step_(first_step), of_process_(std::make_shared<OfProcess>()) {
  of_process_->reuse = reuse;
  detail::ScheduleBuilder builder(program, reuse, graph_, tasks_, {});
  for (std::size_t step = first_step; step < program.steps().size(); ++step) builder.add(step);
}

}  // namespace shardwise
