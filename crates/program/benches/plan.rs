//! Time to plan one pass of a 64-layer decoder, with kept buffers, and to build its program.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll_program::{ArenaLayout, Dims, MemoryPlan, Planner};

#[path = "../tests/it/llama.rs"]
mod llama;

fn plan(c: &mut Criterion) {
    let config = llama::Config::with_layers(64);
    let program = llama::decoder(&config);
    let dims = Dims { rows: 512, logit_rows: 1, kv_len: 8192 };
    let mut planner = Planner::new();
    let (mut plan, mut layout) = (MemoryPlan::default(), ArenaLayout::default());
    let mut group = c.benchmark_group(format!("{} steps", program.step_count()));
    group.bench_function("plan", |b| {
        b.iter(|| planner.plan_into(black_box(&program), black_box(&dims), &llama::KernelScratch, &mut plan));
    });
    group.bench_function("layout", |b| {
        b.iter(|| planner.layout_into(black_box(&program), black_box(&dims), &llama::KernelScratch, &mut layout));
    });
    group.bench_function("peak", |b| {
        b.iter(|| planner.peak_bytes(black_box(&program), black_box(&dims), &llama::KernelScratch));
    });
    group.bench_function("build", |b| b.iter(|| llama::decoder(black_box(&config))));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50);
    targets = plan
}
criterion_main!(benches);
