function head() {
  const memory = plan.memory, checkpoint = plan.checkpoint;
  at("program").textContent = plan.program;
  const about = at("about");
  about.append(`${countText(plan.operations, "operation")} on ${plan.mesh}, ${countText(plan.devices, "device")}`);
  if (memory.fits !== null) about.append(" ", html("span", {class: memory.fits ? "badge good" : "badge bad"}, memory.fits ? "fits" : "does not fit"));
  if (memory.advice) {
    at("advice").hidden = false;
    at("advice").textContent = memory.advice;
  }
  const fact = (name, value, note) => at("facts").append(html("div", {}, html("dt", {}, name), html("dd", {}, value, note ? html("small", {}, note) : null)));
  fact("Needs, at the peak", size(memory.peak_bytes, {id: "peak"}),
       memory.capacity_bytes ? `a device has ${bytesText(memory.capacity_bytes)}` : "on the fullest device");
  fact("Sends, each device", size(sum(plan.traffic, one => one.wire_bytes), {id: "sent"}), countText(sum(plan.traffic, one => one.tensors), "tensor"));
  if (plan.attention) {
    fact("Attention", plan.attention, plan.attention === "fused" ? "in a kernel without memory for its scores" : "one operation after another, with its scores");
  }
  if (plan.modelled) {
    fact("Time, modelled", timeText(plan.modelled.compute_seconds + plan.modelled.collective_seconds),
         `${timeText(plan.modelled.compute_seconds)} computing, ${timeText(plan.modelled.collective_seconds)} collectives`);
  }
  fact("Products, a device", flopText(plan.device_flops), `${flopText(plan.model_flops)} in all`);
  if (checkpoint.bytes) {
    fact("Checkpoint", size(checkpoint.bytes), checkpoint.modelled_save_seconds === null
      ? `${bytesText(checkpoint.host_bytes_per_device)} on the host for each device`
      : `${checkpoint.modelled_save_seconds.toFixed(1)} s to save (modelled)`);
  }
  if (plan.input.bytes) fact("Input", size(plan.input.bytes), "a step");
  at("foot").textContent = plan.modelled ? `Bytes are planned. Times are modelled on ${plan.modelled.machine} (${plan.modelled.source}).` : "Bytes are planned; nothing was run.";
}

at("page").hidden = false;
head();
changes();
search();
memory();
timeline();
tree();
tables();
