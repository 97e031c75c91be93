#include "shardwise/runtime/kernels/detail/elementwise.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "shardwise/runtime/kernels/detail/elementwise_plan.h"
#include "shardwise/runtime/kernels/detail/elementwise_walk.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// The kinds of operands that ops take.
enum class ElementwiseRule {
  none,        // not elementwise
  constant,    // no operands
  any,         // all dtypes
  number,      // all but boolean
  floating,    //
  comparable,  // all dtypes; gives boolean
  finite,      // floating; gives boolean
  logical,     // integers and boolean
  integer,     //
  power,       // numbers; the exponent of a floating base may be an integer
  select,
  convert,
};

struct ElementwiseForm {
  ElementwiseRule rule;
  std::size_t operands;
};

/// True for functions of one floating operand.
bool is_function(Op op) {
  switch (op) {
    case Op::exp:
    case Op::exp2:
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::tanh:
    case Op::logistic:
    case Op::erf:
    case Op::erf_inv:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::cbrt:
    case Op::sin:
    case Op::cos:
    case Op::floor:
    case Op::ceil:
    case Op::round:
      return true;
    default:
      return false;
  }
}

ElementwiseForm form_of(Op op) {
  using enum ElementwiseRule;
  if (is_function(op)) return {floating, 1};
  switch (op) {
    case Op::constant:
      return {constant, 0};
    case Op::identity:
    case Op::stop_gradient:
    case Op::optimization_barrier:
      return {any, 1};
    case Op::convert:
      return {convert, 1};
    case Op::neg:
    case Op::abs:
    case Op::sign:
      return {number, 1};
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::rem:
      return {number, 2};
    case Op::pow:
      return {power, 2};
    case Op::max:
    case Op::min:
      return {any, 2};
    case Op::atan2:
      return {floating, 2};
    case Op::is_finite:
      return {finite, 1};
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
      return {comparable, 2};
    case Op::logical_not:
      return {logical, 1};
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_xor:
      return {logical, 2};
    case Op::population_count:
      return {integer, 1};
    case Op::shift_left:
    case Op::shift_right_logical:
    case Op::shift_right_arithmetic:
      return {integer, 2};
    case Op::select:
      return {select, 3};
    default:
      return {none, 0};
  }
}

/// The demand of a rule on a dtype, in words; empty if it is met.
std::string_view unmet(ElementwiseRule rule, DType dtype) {
  if (!is_computed(dtype)) return "a type that is computed with";
  switch (rule) {
    case ElementwiseRule::none:
      return "an elementwise op";
    case ElementwiseRule::number:
    case ElementwiseRule::power:
      return dtype == DType::boolean ? "a number" : "";
    case ElementwiseRule::floating:
    case ElementwiseRule::finite:
      return is_floating(dtype) ? "" : "a floating type";
    case ElementwiseRule::integer:
      return is_floating(dtype) || dtype == DType::boolean ? "an integer" : "";
    case ElementwiseRule::logical:
      return is_floating(dtype) ? "an integer or bool" : "";
    default:
      return "";
  }
}

/// Throws if such a kernel is impossible.
class ElementwiseCheck {
 public:
  ElementwiseCheck(std::span<const ElementwiseInput> inputs,
                   std::span<const ElementwiseInstruction> instructions,
                   std::span<const std::int32_t> outputs) {
    for (const ElementwiseInput& input : inputs) dtypes_.push_back(input.dtype);
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      check(i, instructions[i]);
      dtypes_.push_back(instructions[i].dtype);
    }
    for (const std::int32_t output : outputs) {
      if (!is_there(output)) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("elementwise kernel: output {} is not there; there are {} operands",
                                output, dtypes_.size()));
      }
    }
  }

 private:
  bool is_there(std::int32_t operand) const {
    return operand >= 0 && as_size(operand) < dtypes_.size();
  }

  static bool takes_exponent(DType base, DType exponent) {
    return ElementwiseKernel::takes_exponent(base, exponent);
  }

  void check(std::size_t index, const ElementwiseInstruction& instruction) const {
    const auto problem = [&](ErrorCode code, const std::string& what) {
      throw Error(code, fmt::format("elementwise kernel: instruction {}, {}: {}", index,
                                    name(instruction.op), what));
    };
    const ElementwiseForm form = form_of(instruction.op);
    if (form.rule == ElementwiseRule::none) {
      problem(ErrorCode::unsupported, "it is not an elementwise op");
    }
    if (instruction.operands.size() != form.operands) {
      problem(ErrorCode::invalid_argument, fmt::format("it has {} operands; needed are {}",
                                                       instruction.operands.size(), form.operands));
    }
    for (const std::int32_t operand : instruction.operands) {
      if (!is_there(operand)) {
        problem(ErrorCode::invalid_argument,
                fmt::format("operand {} is not there; before it there are {}", operand,
                            dtypes_.size()));
      }
    }
    if (const DType of = instruction.dtype; !is_computed(of)) {
      problem(ErrorCode::unsupported, fmt::format("it is not defined for {}; needed is {}",
                                                  name(of), unmet(form.rule, of)));
    }
    if (form.operands == 0) return;
    const auto dtype = [&](std::size_t k) { return dtypes_[as_size(instruction.operands[k])]; };
    const DType of = dtype(form.rule == ElementwiseRule::power ? 0 : form.operands - 1);
    if (const std::string_view needed = unmet(form.rule, of); !needed.empty()) {
      problem(ErrorCode::unsupported,
              fmt::format("it is not defined for {}; needed is {}", name(of), needed));
    }
    for (std::size_t k = 0; k < form.operands; ++k) {
      const bool condition = form.rule == ElementwiseRule::select && k == 0;
      if (form.rule == ElementwiseRule::power && k == 1 && takes_exponent(of, dtype(k))) continue;
      const DType needed = condition ? DType::boolean : of;
      if (dtype(k) != needed) {
        problem(ErrorCode::invalid_argument,
                fmt::format("operand {} is {}; needed is {}", instruction.operands[k],
                            name(dtype(k)), name(needed)));
      }
    }
    const bool gives_boolean =
        form.rule == ElementwiseRule::comparable || form.rule == ElementwiseRule::finite;
    const DType result = gives_boolean ? DType::boolean : of;
    if (form.rule != ElementwiseRule::convert && instruction.dtype != result) {
      problem(ErrorCode::invalid_argument,
              fmt::format("its result is {}; needed is {}", name(instruction.dtype), name(result)));
    }
  }

  std::vector<DType> dtypes_;
};

}  // namespace

ElementwiseKernel::ElementwiseKernel(std::vector<ElementwiseInput> inputs,
                                     std::vector<ElementwiseInstruction> instructions,
                                     std::vector<std::int32_t> outputs) {
  [[maybe_unused]] const ElementwiseCheck checked(inputs, instructions, outputs);
  program_ = std::make_shared<detail::ElementwiseProgram>(
      detail::compile_elementwise(inputs, instructions, outputs));
}

void ElementwiseKernel::run(const Shape& shape, std::span<const Operand> inputs,
                            std::span<std::byte* const> outputs) const {
  if (inputs.size() != program_->input_bytes.size() ||
      outputs.size() != program_->output_bytes.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("elementwise kernel: {} inputs and {} outputs; needed are {} and {}",
                            inputs.size(), outputs.size(), program_->input_bytes.size(),
                            program_->output_bytes.size()));
  }
  for (const Operand& input : inputs) {
    if (input.strides.size() == shape.size()) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("elementwise kernel: strides {} for the shape {}",
                            to_string(input.strides), to_string(shape)));
  }
  if (num_elements(shape) > 0) detail::run_elementwise(*program_, shape, inputs, outputs);
}

bool ElementwiseKernel::takes_exponent(DType base, DType exponent) {
  return base == exponent || (is_floating(base) && is_computed(exponent) &&
                              !is_floating(exponent) && exponent != DType::boolean);
}

bool ElementwiseKernel::supports(Op op, DType dtype) {
  return unmet(form_of(op).rule, dtype).empty();
}

}  // namespace shardwise
