#!/usr/bin/env bash
# The main job, start to end, on real data: train on 8 emulated devices with asynchronous checkpoints, get
# killed in the middle of a save, look at what survived, convert it to another mesh, resume there, and compare
# with a run that nobody disturbed. Then a job in Python, under PyTorch's FSDP2. Installs and builds missing parts;
# PyTorch has SHARDWISE_TORCH_SECONDS (900; 0: none) to be installed, else numpy takes its place. Output goes to build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/python.sh
torch_seconds=${SHARDWISE_TORCH_SECONDS:-900}
echo "== PyTorch for the last chapter: 5 GB where pip has no build for the CPU alone; at most $torch_seconds s"
torch=no
if [ "$torch_seconds" != 0 ] && timeout "$torch_seconds" scripts/python.sh torch; then torch=yes; fi
[ $torch = yes ] || echo "PyTorch was NOT installed: numpy takes its place in the last chapter, with one process"

echo "== Build"
cmake --preset release -D SHARDWISE_BUILD_PYTHON=ON -D "Python_EXECUTABLE=$PWD/build/venv/bin/python" >/dev/null
cmake --build --preset release --target shardwise_tool fashion_mnist gpt shardwise_h5zstd _core

bin=build/release
shardwise=$bin/tools/shardwise
train=$bin/examples/fashion_mnist/fashion_mnist
gpt=$bin/examples/gpt/gpt
out=build/demo
rm -rf "$out"
mkdir -p "$out"
epochs=5 save_every=200 kill_at=600
began=$SECONDS

say() { printf '\n== %s\n' "$*"; }
run() {  # shows a command as it could be typed, and runs it
  local word line='$'
  for word; do [[ $word =~ [^a-zA-Z0-9_./=,+-] ]] && line+=" '$word'" || line+=" $word"; done
  printf '%s\n' "$line"
  "$@"
}
field() { sed -n "s/^$2 //p" "$1"; }
mesh_a=data=4,model=2 mesh_b=data=2,model=3

say "1. An undisturbed run, for comparison: mesh $mesh_a, $epochs epochs of Fashion-MNIST"
run "$train" --mesh $mesh_a --epochs $epochs --save-every $save_every --checkpoints "$out/undisturbed" \
  --digests "$out/undisturbed.batches" | tee "$out/undisturbed.log"

say "2. The same run again, killed with SIGKILL in the middle of the save of step $kill_at"
status=0
run "$train" --mesh $mesh_a --epochs $epochs --save-every $save_every --checkpoints "$out/killed" \
  --kill-in-save $kill_at || status=$?
[ $status = 137 ] || { echo "demo: the run should have died by SIGKILL (137), not with $status" >&2; exit 1; }

say "3. What survived"
run "$shardwise" ls "$out/killed"
run "$shardwise" verify "$out/killed"
run "$shardwise" inspect "$out/killed"

say "4. Convert the newest checkpoint to mesh $mesh_b: 256 hidden units over 3 devices are 86, 86, 84"
run "$shardwise" shards --mesh $mesh_b --spec=-,model --shape 784,256
run "$shardwise" reshard "$out/killed" "$out/converted" --mesh $mesh_b \
  --spec 'w1*=-,model; b1*=model; w2*=model,-; b2*=-'
run "$shardwise" verify "$out/converted"

say "5. Resume on 6 devices from the converted checkpoint"
run "$train" --mesh $mesh_b --epochs $epochs --save-every $save_every --checkpoints "$out/converted" \
  --resume --digests "$out/resumed.batches" | tee "$out/resumed.log"

say "6. The same data, batch by batch: the resumed run against the undisturbed one"
resumed_from=$(head -n 1 "$out/resumed.batches" | cut -d ' ' -f 1)
tail -n "+$((resumed_from + 1))" "$out/undisturbed.batches" > "$out/undisturbed.tail"
if cmp "$out/undisturbed.tail" "$out/resumed.batches"; then
  same_batches="$(wc -l < "$out/resumed.batches") of $(wc -l < "$out/undisturbed.tail")"
else
  same_batches=DIFFERENT
fi
echo "batches $resumed_from and later, by digest: $same_batches equal"

say "7. The weight w1 as h5py sees it"
latest=$(ls -d "$out"/converted/step-* | tail -n 1)
HDF5_PLUGIN_PATH=$PWD/$bin/hdf5/plugins run /usr/bin/python3 examples/fashion_mnist/read_weight.py \
  "$latest" | tee "$out/h5py.log"

say "8. A traced GPT on the text of the Bible, undisturbed: mesh $mesh_a, tensor parallel"
gpt_steps=60 gpt_kill_at=40
run "$gpt" --mesh $mesh_a --plan tensor --steps $gpt_steps --json | tee "$out/gpt.json" | sed -n 1p

say "9. The same run, killed in the middle of the save of step $gpt_kill_at"
status=0
run "$gpt" --mesh $mesh_a --plan tensor --steps $gpt_steps --save-every 20 --checkpoints "$out/gpt" \
  --kill-in-save $gpt_kill_at || status=$?
[ $status = 137 ] || { echo "demo: the run should have died by SIGKILL (137), not with $status" >&2; exit 1; }

say "10. Resumed on 6 devices under another plan: FSDP over data, tensor parallel over model"
run "$gpt" --mesh data=3,model=2 --plan 2d --steps $gpt_steps --save-every 20 --checkpoints "$out/gpt" \
  --json | tee "$out/gpt_resumed.json" | sed -n 1p
losses() {  # the first and the last loss of a run, as decimal numbers; its JSON is after the command
  /usr/bin/python3 -c 'import json, sys
losses = [float.fromhex(l) for l in json.loads(open(sys.argv[1]).readlines()[-1])["losses"]]
print(f"{losses[0]:.4f} {losses[-1]:.4f}")' "$1"
}
read -r gpt_first gpt_last < <(losses "$out/gpt.json")
read -r _ gpt_resumed < <(losses "$out/gpt_resumed.json")
echo "loss $gpt_first, after $gpt_steps steps $gpt_last; after kill and resume $gpt_resumed"

python=$PWD/build/venv/bin/python
export PYTHONPATH=$PWD/$bin/python/package
if [ $torch = yes ]; then
  job=examples/python/fsdp2_job.py weight=model.0.weight before=4 after=2
  launch() { OMP_NUM_THREADS=1 run "${python%/*}/torchrun" --nproc-per-node "$@" 2>>"$out/torchrun.log"; }
  say "11. The same from Python: FSDP2 on $before processes, of which one gets SIGKILL in the middle of the save of step 30"
else
  job=examples/python/numpy_job.py weight=weight before=1 after=1
  launch() { run "$python" "${@:2}"; }
  say "11. The same from Python, with numpy as there is no PyTorch: SIGKILL in the middle of the save of step 30"
fi
status=0
launch $before $job "$out/python" --steps 40 --kill-in-save 30 || status=$?
[ $status != 0 ] || { echo "demo: the job should have died by SIGKILL" >&2; exit 1; }
run "$shardwise" verify "$out/python"

say "12. Its newest valid checkpoint on processes: $after; and the weight as h5py sees it"
launch $after $job "$out/python" --steps 40 | tee "$out/python.log" || {
  tail -n 60 "$out/torchrun.log" >&2
  exit 1
}
HDF5_PLUGIN_PATH=$PWD/$bin/hdf5/plugins run env -u PYTHONPATH /usr/bin/python3 examples/fashion_mnist/read_weight.py \
  "$out/python/step-00000040" $weight | tee "$out/python_h5py.log"
unset PYTHONPATH

say "13. Minibatches by the command: images of three classes, on 8 devices, and from batch 20 on 3 devices"
fashion=/usr/share/datasets/fashion-mnist
data=("idx:$fashion/train-images-idx3-ubyte.gz?field=image" "idx:$fashion/train-labels-idx1-ubyte.gz?field=label"
  --batch 256 --filter "label in 1,3,5" --seed 1)
run "$shardwise" batches "${data[@]}" --mesh $mesh_a --spec image=data,model,- --spec label=data --count 40 --digest |
  tee "$out/batches.log" | sed -n '1,4p;$p'
run "$shardwise" batches "${data[@]}" --mesh 3 --from 20 --count 20 --digest --threads 2 | grep '^batch' > "$out/batches.3"
grep '^batch' "$out/batches.log" | sed -n '21,40p' > "$out/batches.8"

say "14. Fine-tuning in Python: a frozen base is on the disk once, whatever the number of steps; and what two of them differ in"
PYTHONPATH=$PWD/$bin/python/package run "$python" examples/python/adapter_job.py "$out/adapter" --steps 20
run "$shardwise" ls "$out/adapter"
unchanged=$("$shardwise" ls "$out/adapter" --json | /usr/bin/python3 -c 'import json, sys
print(min(step["shared_bytes"] // step["alone_bytes"] for step in json.load(sys.stdin)["steps"]))')
status=0
run "$shardwise" diff "$out/adapter/step-00000015" "$out/adapter/step-00000020" || status=$?
[ $status = 1 ] || { echo "demo: diff should have found the steps different (1), not ended with $status" >&2; exit 1; }

say "15. A byte of the base goes bad on the disk, in both steps at once; a copy mends it"
cp -r "$out/adapter/step-00000020" "$out/backup"
linked=$(echo "$out"/adapter/step-00000020/linked-*.h5)
printf "\x2a" | dd of="$linked" bs=1 seek=100000 conv=notrunc status=none
status=0
run "$shardwise" verify "$out/adapter" || status=$?
[ $status = 1 ] || { echo "demo: verify should have found damage (1), not ended with $status" >&2; exit 1; }
run "$shardwise" verify "$out/adapter/step-00000020" --repair --from "$out/backup"
mended=no
if run "$shardwise" verify "$out/adapter"; then mended=yes; fi

say "Result"
accuracy_a=$(field "$out/undisturbed.log" accuracy) accuracy_b=$(field "$out/resumed.log" accuracy)
sum_program=$(field "$out/resumed.log" w1_sum) sum_h5py=$(field "$out/h5py.log" w1_sum)
at_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a >= b) }'; }
within() { awk -v a="$1" -v b="$2" -v d="$3" 'BEGIN { e = a - b; if (e < 0) e = -e; exit !(e <= d + 1e-9) }'; }
failed=0
row() { printf '%-60s %-28s %s\n' "$@"; }
claim() {  # claim WHAT MEASURED CONDITION...: a row that says whether the condition holds
  local what=$1 measured=$2 holds=yes
  shift 2
  "$@" || { holds=NO; failed=1; }
  row "$what" "$measured" $holds
}
row "what" "measured" "holds"
claim "test accuracy of the undisturbed run, at least 80 %" "$accuracy_a %" at_least "$accuracy_a" 80
claim "test accuracy after kill, reshard, resume: within 0.2" "$accuracy_b %" within "$accuracy_a" "$accuracy_b" 0.2
claim "resumed after step" "$resumed_from (killed in $kill_at)" [ "$resumed_from" = $((kill_at - save_every)) ]
claim "batches after the resume that equal the undisturbed run's" "$same_batches" [ "$same_batches" != DIFFERENT ]
claim "GPT: the loss after $gpt_steps steps, under 3.3 (5.6 at first)" "$gpt_last" at_least 3.3 "$gpt_last"
claim "GPT: after kill and resume on another mesh and plan, within 0.01" "$gpt_resumed" \
  within "$gpt_last" "$gpt_resumed" 0.01
claim "batches 20 to 39 on 8 devices and on 3, by digest" "$(wc -l < "$out/batches.3") equal" \
  cmp "$out/batches.8" "$out/batches.3"
row "sum of w1, program" "$sum_program" ""
claim "sum of w1, h5py" "$sum_h5py" [ "$sum_program" = "$sum_h5py" ]
python_from=$(sed -n 's/.*from step //p' "$out/python.log")
claim "Python, $before to $after processes: resumed after step" "$python_from (killed in 30)" [ "$python_from" = 20 ]
python_sum=$(sed -n 's/.*weight_sum //p' "$out/python.log") python_h5py=$(sed -n 's/.*weight_sum //p' "$out/python_h5py.log")
claim "Python: sum of $weight, job / h5py" "$python_sum / $python_h5py" within "$python_sum" "$python_h5py" 1e-6
claim "steps share at least 20 times what each has alone" "$unchanged times" at_least "$unchanged" 20
claim "a bad byte in both steps is mended from a copy" "$mended" [ $mended = yes ]
row "an asynchronous save held the training up for at most" "$(field "$out/resumed.log" save_blocked_ms) ms" ""
row "peak memory per device, $mesh_a / $mesh_b" \
  "$(field "$out/undisturbed.log" peak_bytes_per_device) / $(field "$out/resumed.log" peak_bytes_per_device) B" ""
claim "whole demo without installation and build, under 240 s" "$((SECONDS - began)) s" [ $((SECONDS - began)) -lt 240 ]
exit $failed
