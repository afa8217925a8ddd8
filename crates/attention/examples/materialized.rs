//! Tiled attention beside attention that holds its scores, in candle's operations as eager models write it.
//!
//! `cargo run --release -p plimsoll-attention --example materialized [rows [kv_len [threads]]]`
//!
//! Heads as in Gemma 3 (4 on 1, `head_dim` 256), f32. Bytes are the most that a call holds beyond its arguments and its result, by a
//! counting allocator; seconds are the least of several runs that take turns.
#![expect(clippy::print_stdout, reason = "a program's output")]

#[path = "../tests/counting/mod.rs"]
mod counting;

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use plimsoll_attention::{CausalAttention, Isa};

const HEADS: usize = 4;
const HEAD_DIM: usize = 256;
const SCALE: f64 = 1.0 / 16.0;

/// The usual eager code: all scores, a mask, a softmax, a product.
fn materialized(q: &Tensor, k: &Tensor, v: &Tensor, start: usize) -> Result<Tensor> {
    let (rows, kv_len) = (q.dim(2)?, k.dim(2)?);
    let mask: Vec<f32> = (0..rows)
        .flat_map(|row| (0..kv_len).map(move |key| if key <= start + row { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    let mask = Tensor::from_vec(mask, (rows, kv_len), &Device::Cpu)?;
    // The one KV head serves all query heads: their rows are one matrix.
    let q = q.reshape((1, 1, HEADS * rows, HEAD_DIM))?;
    let scores = (q.matmul(&k.t()?)? * SCALE)?.reshape((1, HEADS, rows, kv_len))?.broadcast_add(&mask)?;
    let scores = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    let p = scores.broadcast_div(&scores.sum_keepdim(D::Minus1)?)?;
    p.reshape((1, 1, HEADS * rows, kv_len))?.matmul(v)?.reshape((1, HEADS, rows, HEAD_DIM))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |usual: usize| args.next().map_or(Ok(usual), |text| text.parse());
    let (rows, kv_len, threads) = (number(512)?, number(8192)?, number(1)?);
    let start = kv_len.checked_sub(rows).ok_or("more rows than keys")?;
    let tensor = |heads: usize, rows: usize| -> Result<Tensor> {
        let values = (0..heads * rows * HEAD_DIM).map(|i| ((i * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0);
        Tensor::from_iter(values, &Device::Cpu)?.reshape((1, heads, rows, HEAD_DIM))?.to_dtype(DType::F32)
    };
    let (q, k, v) = (tensor(HEADS, rows)?, tensor(1, kv_len)?, tensor(1, kv_len)?);
    let attention = CausalAttention::new(0.0625, Isa::detect(), threads);
    let tiled = || attention.forward(&q, &k, &v, start);
    let materialized = || materialized(&q, &k, &v, start);
    let worst = (tiled()? - materialized()?)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()?;

    let ways: [(&str, &dyn Fn() -> Result<Tensor>); 2] = [("tiled", &tiled), ("materialized", &materialized)];
    let mut found = [(0, f64::INFINITY); 2];
    for _ in 0..5 {
        for ((_, run), (bytes, seconds)) in ways.iter().zip(&mut found) {
            let begin = Instant::now();
            let (out, held_bytes) = counting::held_bytes(run);
            *seconds = begin.elapsed().as_secs_f64().min(*seconds);
            *bytes = held_bytes - out?.elem_count() * size_of::<f32>();
        }
    }
    println!("{rows} rows at {kv_len} keys, {threads} threads, largest difference {worst:.1e}\n");
    println!("| scores | transient, MiB | seconds |\n|---|---|---|");
    for ((name, _), (bytes, seconds)) in ways.iter().zip(found) {
        println!("| {name} | {:.2} | {seconds:.4} |", bytes as f64 / (1u64 << 20) as f64);
    }
    let [tiled, materialized] = found;
    println!(
        "\nTransient down by {:.1} %, {:.2} times as fast.",
        100.0 - 100.0 * tiled.0 as f64 / materialized.0 as f64,
        materialized.1 / tiled.1
    );
    Ok(())
}
