//! Heap memory that a pass allocates outside of its arena.
//!
//! A binary of its own: it counts what the whole process allocates.
#![expect(unsafe_code, reason = "a global allocator is unsafe to implement; this one only counts and forwards")]

use anyhow::Result;
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuExecutor, CpuSettings, LogitRows, Model, Segment};
use plimsoll_tests::{
    golden::Tiny,
    model::{RandomLlama, default_model},
    pass::new_sequence,
    random::Random,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Counts every byte that is asked for; what is freed is not subtracted.
struct Counting;

static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// One test at a time: the count is the process's.
static TURN: Mutex<()> = Mutex::new(());

// SAFETY: every call is forwarded to `System` with the caller's own arguments; counting allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size() as u64, Relaxed);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(new_size as u64, Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes a chunk may allocate outside of the arena, KV apart.
fn bound_bytes(rows: usize) -> u64 {
    256 * 1024 + 64 * rows as u64
}

/// Bytes allocated by a pass of the next `rows` of `tokens`, growth of the KV apart.
fn heap_bytes(
    executor: &mut CpuExecutor,
    sequence: &mut plimsoll_kvcache::Sequence,
    tokens: &[u32],
    rows: usize,
) -> Result<u64> {
    let start = sequence.len();
    let kv_before_bytes = sequence.bytes() - sequence.mapped_bytes();
    let before_bytes = ALLOCATED_BYTES.load(Relaxed);
    let mut segments = [Segment { sequence, tokens: &tokens[start..start + rows], start }];
    executor.run(&mut segments, LogitRows::Last, &mut ())?;
    let bytes = ALLOCATED_BYTES.load(Relaxed) - before_bytes;
    // What is mapped no allocator counts.
    Ok(bytes - (sequence.bytes() - sequence.mapped_bytes() - kv_before_bytes))
}

/// Prefills in chunks of 1 (the warm-up), 64, 512 and 64 rows, and decodes one. Returns a line of figures.
fn expect_little_heap(name: &str, model: &Arc<Model>, threads: usize, dtype: KvDtype) -> Result<String> {
    let chunks = [1, 64, 512, 64, 1];
    let total = chunks.iter().sum();
    let tokens = Random::new(7).tokens(total, model.architecture().dimensions.vocab_size);
    let mut executor = CpuExecutor::new(Arc::clone(model), CpuSettings::detect(threads, dtype))?;
    let mut sequence = new_sequence(model, dtype, total)?;
    let mut figures = Vec::new();
    for (index, rows) in chunks.into_iter().enumerate() {
        let bytes = heap_bytes(&mut executor, &mut sequence, &tokens, rows)?;
        figures.push((rows, bytes));
        assert!(index == 0 || bytes <= bound_bytes(rows), "{name}, {threads} threads: {figures:?}");
    }
    Ok(format!("{name}, {threads} threads, KV {dtype:?}: (rows, heap bytes) {figures:?}"))
}

#[test]
fn a_chunk_allocates_little_outside_of_the_arena() -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["tiny-gqa-6x2", "tiny-q4_1", "tiny-k-quants", "tiny-qwen3_moe", "tiny-qwen3_next", "tiny-qwen3_5_moe"]
    {
        let model = Tiny::load(name)?.model()?;
        for (threads, dtype) in [(1, KvDtype::F32), (2, KvDtype::F16), (4, KvDtype::Bf16)] {
            println!("{}", expect_little_heap(name, &model, threads, dtype)?);
        }
    }
    println!("{}", expect_little_heap("60 layers", &RandomLlama::small(60).model(8)?, 2, KvDtype::F16)?);
    Ok(())
}

#[test]
#[ignore = "slow: 13 s, needs the default model"]
fn a_chunk_of_the_default_model_allocates_little_outside_of_the_arena() -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let model = default_model()?;
    for threads in [1, 2] {
        println!("{}", expect_little_heap("default model", &model, threads, KvDtype::F16)?);
    }
    Ok(())
}
