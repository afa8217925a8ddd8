"""The peer `torch`: prefill and decode of a model's shape with transformers on the CPU.

    python torch_prefill.py --config CONFIG.json --dtype bf16 --tokens 512 --decode 0 --threads 2

prints one JSON object. Weights are random: dense products cost the same whatever they hold. The prompt is one pass that fills the cache and
asks for the logits of its last row only; attention is torch's own fused one. A short pass beforehand is not timed, nor is loading.
"""

import argparse
import inspect
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="config.json of the model")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--tokens", type=int, required=True, help="length of the prompt")
    parser.add_argument("--decode", type=int, default=0, help="tokens to generate, greedily, after the prompt")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
    with open(args.config, encoding="utf-8") as file:
        settings = json.load(file)
    # A rope base may stand beside the settings or among them, by the version of transformers: it takes both.
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "sdpa"
    # Built in the type that it runs in, so that no f32 copy counts as its memory.
    torch.set_default_dtype(dtype)
    with torch.inference_mode():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        ids = torch.randint(0, config.vocab_size, (1, args.tokens))
        warm = ids[:, : min(args.tokens, 128)]
        model(input_ids=warm, use_cache=True, logits_to_keep=1)

        start = time.perf_counter()
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1:].argmax(-1)
        seconds = time.perf_counter() - start

        # Newer versions of transformers have a shorter name for it.
        name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
        cache = {name: next(output[key] for key in ("cache", "past_key_values") if key in output)}
        decode_start = time.perf_counter()
        for _ in range(args.decode):
            output = model(input_ids=token, use_cache=True, **cache)
            token = output.logits[:, -1:].argmax(-1)
        decode_seconds = time.perf_counter() - decode_start

    report = {
        "prefill": {"tokens": args.tokens, "seconds": seconds},
        "decode": {"tokens": args.decode, "seconds": decode_seconds},
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
