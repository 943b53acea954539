#!/bin/sh
# Every figure that needs a card, in one go of under ten minutes: builds, tests what only a card can show, measures.
#
#   DYMEM_TORCHTUNE=torchtune-0.6.1-py3-none-any.whl bench/card.sh OUTPUT_FOLDER [parts]
#
# ONLY="unet_b16 llama_varlen" chooses the workloads of compare and caps (default: the short choice of dymem compare);
# COMPARE="--repeats 1 --iterations 12" is handed to both, SECONDS_MOST=300 is what each may take, PAGE=1 asks for their
# pages with pictures (a run more of each). PINNED="0,2,4,6" keeps fsdp2, whose step the host bounds, on these cores.
# parts: any of build losses calls pairs torchtune tests (all, in this order, unless given; tests is every test of a card,
# on as many cards as there are, WORKERS files at a time where pytest-xdist is there); rivals, compare and caps (RMM only
# where it can be imported); stress (4 minutes, likewise); fsdp2 (3 minutes); peers (two cards); stacks (4 minutes: users'
# scripts unchanged) and stackpairs (9 minutes: their step times)
set -u
out=${1:?usage: bench/card.sh OUTPUT_FOLDER [parts]}
shift
parts=${*:-build losses calls pairs torchtune tests}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
only=$(for name in ${ONLY:-}; do printf -- '--only %s ' "$name"; done)
most=${SECONDS_MOST:-540}
card_tests="tests/gpu tests/adapter/test_gpu.py tests/contract"
side_by_side=$("$python" -c 'import xdist' 2>/dev/null && echo "-n ${WORKERS:-14} --dist loadfile")
say() { echo "== $* ($(date +%T))"; }

for part in $parts; do
  say "$part"
  case $part in
    build) "$python" setup.py build_ext --inplace >"$out/build.log" 2>&1 || { tail -20 "$out/build.log"; exit 2; }
      "$python" -c 'import dymem; dymem.install(); import torch; torch.zeros(1, device="cuda")' || exit 2
      nvidia-smi -L ;;
    losses) timeout 120 "$python" bench/equal_losses.py resnet50_b128 llama_varlen llama_fsdp2_ckpt --iterations 5 \
      --json "$out/losses.json" ;;
    calls) timeout 80 "$python" bench/native_calls.py --rounds 2 --json "$out/calls.json" ;;
    pairs) timeout 60 "$python" bench/paired.py resnet50_b128 --pairs 3 --iterations 40 --no-losses \
        --budget-seconds 55 --out "$out"
      timeout 110 "$python" bench/paired.py llama_varlen --pairs 3 --iterations 48 --no-losses \
        --budget-seconds 105 --out "$out"
      timeout 70 "$python" bench/paired.py llama_fsdp2_ckpt --pairs 3 --iterations 24 --no-losses --budget-seconds 65 \
        --out "$out" ;;
    torchtune) timeout 190 "$python" bench/paired.py resnet152_torchtune_once resnet152_torchtune_each --pairs 3 \
      --iterations 16 --no-losses --budget-seconds 185 --out "$out" ;;
    fsdp2) ${PINNED:+taskset -c "$PINNED"} timeout 200 "$python" bench/paired.py llama_fsdp2_ckpt \
      --pairs 3 --shapes 14 --iterations 70 --no-losses --budget-seconds 190 --out "$out" ;;
    tests) timeout 400 "$python" -m pytest -q -p no:cacheprovider $side_by_side -m "not alone" $card_tests \
        --junitxml "$out/tests.xml"
      timeout 180 "$python" -m pytest -q -p no:cacheprovider -m "alone and gpu" $card_tests \
        --junitxml "$out/tests_alone.xml" ;;
    stacks) timeout 400 "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_stacks.py --durations 20 \
      --junitxml "$out/stacks.xml" ;;
    stackpairs) timeout 560 "$python" bench/stacks.py --bound 1.01 --budget-seconds 530 --json "$out/stacks.json" ;;
    stress) COLUMNS=150 timeout 300 "$python" -m dymem stress --driver cuda --budget-seconds "${STRESS_SECONDS:-240}" \
      --json "$out/stress.json" --picture "$out/stress.png" | tee "$out/stress.txt" ;;
    rivals) timeout 300 "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_rivals.py ;;
    compare) "$python" -m dymem compare $only ${COMPARE:-} --seconds "$most" --json "$out/compare.json" \
      ${PAGE:+--html "$out/compare.html"} ;;
    caps) "$python" -m dymem compare $only ${COMPARE:-} --cap "${CAPS:-1.00x,1.02x,1.05x,1.20x}" --seconds "$most" \
      --json "$out/caps.json" ${PAGE:+--html "$out/caps.html"} ;;
    peers) timeout 120 "$python" -m pytest -q -p no:cacheprovider tests/contract/test_driver_contract.py \
      tests/adapter/test_gpu.py -k "peer or two_devices" ;;
    *) echo "card.sh: no part '$part'" >&2; exit 2 ;;
  esac
done
say done
