//! The product: checks, scratch, rounding of `x`.

use crate::kernels::{K_BLOCK, Kernel, Operand, Part, Product, Scalar};
use crate::layout::PANEL;
use crate::{PackedWeight, Settings, WeightType};

/// Required alignment of scratch.
const SCRATCH_ALIGN: usize = 64;
/// Parts that share one pass over `x`; more are done in several passes, with the same bits.
const PARTS_PER_PASS: usize = 8;
/// Elements of `x` below which one task rounds them all.
const INLINE_ROUNDING: usize = 1 << 15;

/// One weight of a call, its bias `[out_features]` and where its output `[rows, out_features]` goes.
#[derive(Debug)]
pub struct Output<'a> {
    /// The packed weight.
    pub weight: &'a PackedWeight,
    /// Added once, after the sum over `k`.
    pub bias: Option<&'a [f32]>,
    /// Overwritten with the result.
    pub out: &'a mut [f32],
}

/// How the scratch of a call is cut.
#[derive(Debug, Clone, Copy)]
struct ScratchPlan {
    /// Elements between rounded rows of `x`: a multiple of 16, and never of 1,024, so rows fall into different cache sets.
    x_stride: usize,
    /// Elements of `x` rounded to bf16; 0 if no part needs them.
    rounded: usize,
    /// Elements of `x` copied as they are; f32 parts need a copy only to pad an odd `k`.
    padded: usize,
    /// Elements for dequantized weights, all tasks together.
    weights: usize,
}

impl ScratchPlan {
    fn new(rows: usize, in_features: usize, types: impl Iterator<Item = WeightType>, threads: usize) -> Self {
        let x_stride = in_features.next_multiple_of(16) + 16;
        let (mut any_bf16, mut any_f32) = (false, false);
        for ty in types {
            any_bf16 |= ty.multiplies_in_bf16();
            any_f32 |= !ty.multiplies_in_bf16();
        }
        let x_elements = rows * x_stride;
        Self {
            x_stride,
            rounded: if any_bf16 { x_elements } else { 0 },
            padded: if any_f32 && !in_features.is_multiple_of(2) { x_elements } else { 0 },
            weights: if any_bf16 && rows > 0 { threads.max(1) * K_BLOCK * PANEL } else { 0 },
        }
    }

    fn bytes(&self) -> u64 {
        (self.rounded as u64 + self.padded as u64 + self.weights as u64) * size_of::<f32>() as u64
    }
}

/// Scratch bytes that [`linear`] needs for these shapes: a pure function of them and of `settings.threads`.
///
/// `parts` lists type and `out_features` of each weight. Rows of `x` rounded to bf16 take about `4 * rows *
/// in_features` bytes if any weight is not f32, and each task takes 16 KiB.
pub fn scratch_bytes(rows: usize, in_features: usize, parts: &[(WeightType, usize)], settings: Settings) -> u64 {
    ScratchPlan::new(rows, in_features, parts.iter().map(|part| part.0), settings.threads).bytes()
}

/// Multiplies `x` `[rows, in_features]` with the transpose of each part's weight; several weights (query, key and
/// value; gate and up) share one pass over `x`.
///
/// `part.out[r, n] = sum over k of x[r, k] * weight[n, k] + bias[n]`, summed in the order that
/// [`reference::dot`](crate::reference::dot) spells out. The bits of a row do not depend on `rows`, on the other parts
/// or on `settings`. Allocates nothing beyond what rayon needs to start tasks.
///
/// # Panics
/// If a length does not fit the shapes, or `scratch` is shorter than [`scratch_bytes`] or not 64-byte aligned.
pub fn linear(x: &[f32], rows: usize, parts: &mut [Output<'_>], scratch: &mut [u8], settings: Settings) {
    let Some(first) = parts.first() else { return };
    let in_features = first.weight.in_features();
    check(x, rows, in_features, parts);
    if rows == 0 {
        return;
    }
    let plan =
        ScratchPlan::new(rows, in_features, parts.iter().map(|part| part.weight.weight_type()), settings.threads);
    let scratch = scratch_elements(scratch, plan);
    let threads = settings.threads.max(1);
    #[cfg(target_arch = "x86_64")]
    if settings.isa == crate::Isa::Avx2
        && let Some(kernel) = crate::kernels::Avx2::detect()
    {
        return run(kernel, x, in_features, parts, scratch, plan, threads);
    }
    run(Scalar, x, in_features, parts, scratch, plan, threads);
}

fn check(x: &[f32], rows: usize, in_features: usize, parts: &[Output<'_>]) {
    assert_eq!(x.len(), rows * in_features, "x is not [{rows}, {in_features}]");
    for (index, part) in parts.iter().enumerate() {
        let out_features = part.weight.out_features();
        assert_eq!(part.weight.in_features(), in_features, "part {index}: in_features differ from part 0");
        assert_eq!(part.out.len(), rows * out_features, "part {index}: out is not [{rows}, {out_features}]");
        if let Some(bias) = part.bias {
            assert_eq!(bias.len(), out_features, "part {index}: bias is not [{out_features}]");
        }
    }
}

fn scratch_elements(scratch: &mut [u8], plan: ScratchPlan) -> &mut [f32] {
    let needed = plan.rounded + plan.padded + plan.weights;
    let bytes = needed * size_of::<f32>();
    if bytes == 0 {
        return &mut [];
    }
    assert!(scratch.len() >= bytes, "{} bytes of scratch, {bytes} needed", scratch.len());
    assert!(scratch.as_ptr().addr().is_multiple_of(SCRATCH_ALIGN), "scratch is not {SCRATCH_ALIGN}-byte aligned");
    bytemuck::cast_slice_mut(&mut scratch[..bytes])
}

fn run<K: Kernel>(
    kernel: K,
    x: &[f32],
    in_features: usize,
    parts: &mut [Output<'_>],
    scratch: &mut [f32],
    plan: ScratchPlan,
    threads: usize,
) {
    let (rounded, rest) = scratch.split_at_mut(plan.rounded);
    let (padded, weights) = rest.split_at_mut(plan.padded);
    let stride = plan.x_stride;
    prepare(x, in_features, rounded, stride, threads, |x, out| kernel.round(x, out));
    prepare(x, in_features, padded, stride, threads, |x, out| out.copy_from_slice(x));
    let rounded = Operand { data: rounded, stride };
    let exact =
        if plan.padded > 0 { Operand { data: padded, stride } } else { Operand { data: x, stride: in_features } };
    for parts in parts.chunks_mut(PARTS_PER_PASS) {
        let mut pass = [const { None }; PARTS_PER_PASS];
        for (slot, part) in pass.iter_mut().zip(parts) {
            let x = if part.weight.weight_type().multiplies_in_bf16() { rounded } else { exact };
            *slot = Some(Part::new(part.weight, part.bias, x, part.out));
        }
        Product::new(&pass, x.len() / in_features, in_features, threads).run(kernel, threads, weights);
    }
}

/// Writes every row of `x` through `convert` to its place in `out`, with a zero behind it if `in_features` is odd.
fn prepare(
    x: &[f32],
    in_features: usize,
    out: &mut [f32],
    stride: usize,
    threads: usize,
    convert: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let convert_rows = |x: &[f32], out: &mut [f32]| {
        for (x, out) in x.chunks_exact(in_features).zip(out.chunks_exact_mut(stride)) {
            let (row, padding) = out.split_at_mut(in_features);
            convert(x, row);
            padding[0] = 0.0;
        }
    };
    let rows = x.len() / in_features;
    if threads == 1 || rows == 1 || x.len() < INLINE_ROUNDING {
        return convert_rows(x, out);
    }
    let share = rows.div_ceil(threads);
    rayon::in_place_scope(|scope| {
        let convert_rows = &convert_rows;
        for (x, out) in x.chunks(share * in_features).zip(out.chunks_mut(share * stride)) {
            scope.spawn(move |_| convert_rows(x, out));
        }
    });
}
