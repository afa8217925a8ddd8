//! Gated delta rule, token by token: Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464.
//!
//! Columns of a state never meet: what a token reads, changes and gives back in column `c` depends on column `c` alone. So work is cut by value
//! head and by blocks of columns, and a block goes through all tokens while it stays in the nearest cache.

use plimsoll_attention::{Isa, math};
use plimsoll_program::HeadOrder;
use rayon::prelude::*;

/// Columns of a block: four AVX2 registers, so that the chains of a sum overlap.
const BLOCK: usize = 32;

/// Sizes of a gated delta step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaShape {
    pub(crate) key_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_heads: usize,
    pub(crate) v_head_dim: usize,
    pub(crate) order: HeadOrder,
}

/// The rows of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaRows<'a> {
    /// `[rows, key_heads * head_dim]`.
    pub(crate) q: &'a [f32],
    /// As `q`.
    pub(crate) k: &'a [f32],
    /// `[rows, value_heads * v_head_dim]`.
    pub(crate) v: &'a [f32],
    /// `[rows, value_heads]`.
    pub(crate) decay: &'a [f32],
    /// As `decay`.
    pub(crate) beta: &'a [f32],
}

impl DeltaShape {
    fn blocks_per_head(&self) -> usize {
        self.v_head_dim.div_ceil(BLOCK)
    }

    /// Elements of one value head's state, `[head_dim, v_head_dim]`.
    fn head_state(&self) -> usize {
        self.head_dim * self.v_head_dim
    }

    /// Scratch of [`gated_delta`]: one block of columns for each thread.
    pub(crate) fn scratch_bytes(&self, threads: usize) -> u64 {
        (self.head_dim * BLOCK * size_of::<f32>() * threads.max(1)) as u64
    }
}

/// Takes a state from `before` to `after` over the rows, see [`plimsoll_program::Op::GatedDelta`].
///
/// For each token and column: `t = s * e^decay` (rounded), `known = fma(t, k, known)` over ascending `head_dim` from 0, `d = (v - known) *
/// beta`, `s = fma(k, d, t)`, `o = fma(s, q, o)` over ascending `head_dim` from 0. `e^decay` is the crate family's own exponential.
///
/// `before`, `after`: `[value_heads, head_dim, v_head_dim]`; without a `before`, `after` holds the state and is changed in place. `out`: as `v`.
pub(crate) fn gated_delta(
    shape: &DeltaShape,
    rows: DeltaRows<'_>,
    (before, after): (Option<&[f32]>, &mut [f32]),
    out: &mut [f32],
    scratch: &mut [f32],
    isa: Isa,
    threads: usize,
) {
    let (blocks, head_state) = (shape.blocks_per_head(), shape.head_state());
    let width = shape.value_heads * shape.v_head_dim;
    let tokens = rows.decay.len() / shape.value_heads;
    let states = shape.value_heads * head_state;
    assert_eq!(
        (before.map_or(states, <[f32]>::len), after.len(), out.len()),
        (states, states, tokens * width),
        "lengths do not fit {shape:?}"
    );
    let (after, out) = (Disjoint::new(after), Disjoint::new(out));
    let work = |task: usize, units: std::ops::Range<usize>, local: &mut [[f32; BLOCK]]| {
        debug_assert!(task < threads.max(1), "a task for each thread");
        for unit in units {
            let (head, first) = (unit / blocks, unit % blocks * BLOCK);
            let columns = BLOCK.min(shape.v_head_dim - first);
            let place = |row: usize| head * head_state + row * shape.v_head_dim + first;
            for (row, local) in local.iter_mut().enumerate() {
                local[columns..].fill(0.0);
                match before {
                    Some(before) => local[..columns].copy_from_slice(&before[place(row)..][..columns]),
                    None => after.read(place(row), &mut local[..columns]),
                }
            }
            let block = Block { shape, head, first, columns };
            run_block(isa, &block, &rows, local, &out);
            for (row, local) in local.iter().enumerate() {
                after.write(place(row), &local[..columns]);
            }
        }
    };
    let units = shape.value_heads * blocks;
    let (local, _) = scratch.as_chunks_mut::<BLOCK>();
    let tasks = threads.clamp(1, units.max(1));
    if tasks == 1 {
        return work(0, 0..units, &mut local[..shape.head_dim]);
    }
    let share = units.div_ceil(tasks);
    local.par_chunks_mut(shape.head_dim).take(tasks).enumerate().for_each(|(task, local)| {
        work(task, (task * share).min(units)..((task + 1) * share).min(units), local);
    });
}

/// One block of columns of one value head.
struct Block<'a> {
    shape: &'a DeltaShape,
    head: usize,
    /// First column in the head.
    first: usize,
    columns: usize,
}

fn run_block(isa: Isa, block: &Block<'_>, rows: &DeltaRows<'_>, state: &mut [[f32; BLOCK]], out: &Disjoint<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Scalar && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        #[expect(unsafe_code, reason = "the same code for wider registers")]
        // SAFETY: this machine has both features.
        return unsafe { run_block_avx2(block, rows, state, out) };
    }
    let _ = isa;
    steps(block, rows, state, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_block_avx2(block: &Block<'_>, rows: &DeltaRows<'_>, state: &mut [[f32; BLOCK]], out: &Disjoint<'_>) {
    steps(block, rows, state, out);
}

/// The definition; each column is a lane of its own, so registers of any width give the same bits.
#[inline(always)]
fn steps(block: &Block<'_>, rows: &DeltaRows<'_>, state: &mut [[f32; BLOCK]], out: &Disjoint<'_>) {
    let DeltaShape { key_heads, head_dim, value_heads, v_head_dim, order } = *block.shape;
    let key_head = order.key_head(block.head, key_heads, value_heads);
    for token in 0..rows.decay.len() / value_heads {
        let at = (token * key_heads + key_head) * head_dim;
        let (q, k) = (&rows.q[at..][..head_dim], &rows.k[at..][..head_dim]);
        let at = token * value_heads + block.head;
        let (kept, beta) = (math::exp(rows.decay[at]), rows.beta[at]);
        let place = at * v_head_dim + block.first;
        let mut delta = [0.0f32; BLOCK];
        delta[..block.columns].copy_from_slice(&rows.v[place..][..block.columns]);
        let mut known = [0.0f32; BLOCK];
        for (state, &k) in state.iter().zip(k) {
            for (known, state) in known.iter_mut().zip(state) {
                *known = (state * kept).mul_add(k, *known);
            }
        }
        for (delta, known) in delta.iter_mut().zip(&known) {
            *delta = (*delta - known) * beta;
        }
        let mut sums = [0.0f32; BLOCK];
        for ((state, &k), &q) in state.iter_mut().zip(k).zip(q) {
            for ((state, delta), sum) in state.iter_mut().zip(&delta).zip(&mut sums) {
                *state = k.mul_add(*delta, *state * kept);
                *sum = state.mul_add(q, *sum);
            }
        }
        out.write(place, &sums[..block.columns]);
    }
}

/// A slice that several tasks write and read, each at places of its own.
struct Disjoint<'a> {
    start: *mut f32,
    len: usize,
    _borrow: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: tasks write disjoint places, see `Disjoint::write`; the slice stays borrowed for as long as this value lives.
#[expect(unsafe_code, reason = "heads of one output lie between each other")]
unsafe impl Sync for Disjoint<'_> {}

impl<'a> Disjoint<'a> {
    fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _borrow: std::marker::PhantomData }
    }

    /// Reads `values` from place `at` on, which is this task's as in [`Disjoint::write`].
    #[inline(always)]
    fn read(&self, at: usize, values: &mut [f32]) {
        assert!(at <= self.len && values.len() <= self.len - at, "a read past the end");
        // SAFETY: inside of the slice by the assertion, and no other task writes these places.
        #[expect(unsafe_code, reason = "heads of one output lie between each other")]
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), values.as_mut_ptr(), values.len());
        }
    }

    /// Writes `values` from place `at` on. Only [`gated_delta`] makes these places: those of two units never overlap, and a unit is one task's.
    #[inline(always)]
    fn write(&self, at: usize, values: &[f32]) {
        assert!(at <= self.len && values.len() <= self.len - at, "a write past the end");
        // SAFETY: inside of the slice by the assertion, and no other task writes or reads these places.
        #[expect(unsafe_code, reason = "heads of one output lie between each other")]
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.start.add(at), values.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use proptest::prelude::*;

    struct Case {
        shape: DeltaShape,
        values: [Vec<f32>; 5],
        start: Vec<f32>,
    }

    impl Case {
        fn new(shape: DeltaShape, tokens: usize, seed: u64) -> Self {
            let mut random = Random(seed);
            let mut values = |width: usize, scale: f32, shift: f32| -> Vec<f32> {
                random.values(tokens * width).iter().map(|x| x * scale + shift).collect()
            };
            let (keys, heads) = (shape.key_heads * shape.head_dim, shape.value_heads);
            let values = [
                values(keys, 1.0, 0.0),
                values(keys, 1.0, 0.0),
                values(heads * shape.v_head_dim, 2.0, 0.0),
                values(heads, 3.0, -1.6),
                values(heads, 1.0, 0.5),
            ];
            Self { shape, values, start: Random(seed + 1).values(heads * shape.head_state()) }
        }

        fn rows(&self, tokens: std::ops::Range<usize>) -> DeltaRows<'_> {
            let DeltaShape { key_heads, head_dim, value_heads, v_head_dim, .. } = self.shape;
            let part = |index: usize, width: usize| &self.values[index][tokens.start * width..tokens.end * width];
            DeltaRows {
                q: part(0, key_heads * head_dim),
                k: part(1, key_heads * head_dim),
                v: part(2, value_heads * v_head_dim),
                decay: part(3, value_heads),
                beta: part(4, value_heads),
            }
        }

        /// Runs the tokens in parts; bits of all rows, then of the last state.
        fn run(&self, cuts: &[usize], isa: Isa, threads: usize) -> Vec<u32> {
            let shape = &self.shape;
            let mut state = self.start.clone();
            let mut all = Vec::new();
            for cut in cuts.windows(2) {
                let rows = self.rows(cut[0]..cut[1]);
                let mut after = vec![f32::NAN; state.len()];
                let mut out = vec![f32::NAN; rows.v.len()];
                let mut scratch = vec![f32::NAN; usize::try_from(shape.scratch_bytes(threads)).unwrap() / 4];
                if cut[0] == 0 {
                    gated_delta(shape, rows, (Some(&state), &mut after), &mut out, &mut scratch, isa, threads);
                    state = after;
                } else {
                    gated_delta(shape, rows, (None, &mut state), &mut out, &mut scratch, isa, threads);
                }
                all.extend(out);
            }
            all.extend(state);
            all.into_iter().map(f32::to_bits).collect()
        }

        /// Column by column, from the formula.
        fn plain(&self, tokens: usize) -> Vec<u32> {
            let DeltaShape { key_heads, head_dim, value_heads, v_head_dim, order } = self.shape;
            let [q, k, v, decay, beta] = &self.values;
            let mut state = self.start.clone();
            let mut out = Vec::new();
            for token in 0..tokens {
                for head in 0..value_heads {
                    let key_head = match order {
                        HeadOrder::Grouped => head * key_heads / value_heads,
                        HeadOrder::Tiled => head % key_heads,
                    };
                    let key = (token * key_heads + key_head) * head_dim;
                    let factors = token * value_heads + head;
                    let kept = math::exp(decay[factors]);
                    for column in 0..v_head_dim {
                        let cell = |i: usize| (head * head_dim + i) * v_head_dim + column;
                        let (mut known, mut sum) = (0.0f32, 0.0f32);
                        for i in 0..head_dim {
                            state[cell(i)] *= kept;
                            known = state[cell(i)].mul_add(k[key + i], known);
                        }
                        let delta = (v[factors * v_head_dim + column] - known) * beta[factors];
                        for i in 0..head_dim {
                            state[cell(i)] = k[key + i].mul_add(delta, state[cell(i)]);
                            sum = state[cell(i)].mul_add(q[key + i], sum);
                        }
                        out.push(sum);
                    }
                }
            }
            out.into_iter().chain(state).map(f32::to_bits).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_cut_thread_count_and_instruction_set_gives_the_bits_of_the_definition(
            key_heads in 1usize..=3, group in 1usize..=3, head_dim in 1usize..=40, v_head_dim in 1usize..=70,
            tokens in 1usize..=12, cut in 0usize..=12, threads in 1usize..=4, seed in 0u64..100, tiled in any::<bool>(),
        ) {
            let order = if tiled { HeadOrder::Tiled } else { HeadOrder::Grouped };
            let shape = DeltaShape { key_heads, head_dim, value_heads: key_heads * group, v_head_dim, order };
            let case = Case::new(shape, tokens, seed);
            let want = case.plain(tokens);
            prop_assert_eq!(&case.run(&[0, tokens], Isa::Scalar, 1), &want);
            prop_assert_eq!(&case.run(&[0, tokens], Isa::detect(), threads), &want);
            let cut = cut.min(tokens);
            prop_assert_eq!(&case.run(&[0, cut, tokens], Isa::detect(), threads), &want);
            let parts: Vec<usize> = (0..=tokens).collect();
            prop_assert_eq!(&case.run(&parts, Isa::detect(), threads), &want);
        }
    }
}
