//! What the candle API allocates, by a counting allocator: within `workspace_bytes`, at every `kv_len`.
#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "a test fails where its set-up does")]

mod counting;

use candle_core::{DType, Device, Tensor};
use plimsoll_attention::{AttnShape, CausalAttention, Isa, KvDtype, KvValues, TensorRoute};

/// What candle's product packs its operands into, on every thread it uses, and what it leaves to the shapes' own vectors.
const PRODUCT_BYTES: u64 = 4 << 20;

/// Most bytes held by one call beyond its arguments and its result.
fn measured(route: TensorRoute, shape: &AttnShape, q_dtype: DType) -> (u64, u64) {
    let attention = CausalAttention { route: Some(route), ..CausalAttention::new(0.1, Isa::detect(), 2) };
    let tensor = |heads, rows, dim, dtype| Tensor::ones((1, heads, rows, dim), dtype, &Device::Cpu).unwrap();
    let q = tensor(shape.heads, shape.rows, shape.head_dim, q_dtype);
    let k = tensor(shape.kv_heads, shape.kv_len, shape.head_dim, DType::BF16);
    let v = tensor(shape.kv_heads, shape.kv_len, shape.v_head_dim, DType::BF16);
    let run = || attention.forward(&q, &k, &v, shape.kv_len - shape.rows).unwrap();
    let result_bytes = (run().elem_count() * q_dtype.size_in_bytes()) as u64;
    let held = counting::held_bytes(|| drop(run())).1 as u64;
    (held.saturating_sub(result_bytes), attention.workspace_bytes(route, 1, shape, q_dtype))
}

/// One test: others would allocate meanwhile.
#[test]
fn memory_stays_within_the_workspace_at_every_length() {
    for (rows, q_dtype) in [(1, DType::F32), (300, DType::BF16)] {
        for route in [TensorRoute::Tiled, TensorRoute::Portable] {
            for kv_len in [300, 2500] {
                let shape = AttnShape {
                    rows,
                    kv_len,
                    heads: 16,
                    kv_heads: 4,
                    head_dim: 128,
                    v_head_dim: 96,
                    kv_dtype: KvDtype::Bf16,
                    kv_values: KvValues::Own,
                    window: None,
                };
                let (held, workspace) = measured(route, &shape, q_dtype);
                let what =
                    format!("{route:?}, {rows} rows of {q_dtype:?}, {kv_len} keys: {held} held, {workspace} stated");
                let beyond = match route {
                    TensorRoute::Tiled => 16 << 10,
                    _ => PRODUCT_BYTES,
                };
                assert!(held <= workspace + beyond, "{what}");
                assert!(held + beyond >= workspace / 2, "{what}");
            }
        }
    }
}
