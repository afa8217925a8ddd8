//! The product: checks, scratch, rounding of `x`.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernels::{self, Kernel, Operand, PANEL_SCRATCH, Part, Product, Scalar};
use crate::{Isa, PackedWeight, Settings, WeightType};

/// Required alignment of scratch.
const SCRATCH_ALIGN: usize = 64;
/// Parts that share one pass over `x`; more are done in several passes, with the same bits.
const PARTS_PER_PASS: usize = 8;
/// Elements of `x` below which one task rounds them all.
const INLINE_ROUNDING: usize = 1 << 15;
/// Elements below which one task combines two outputs.
const INLINE_COMBINING: usize = 1 << 14;
/// What is never set.
static NEVER: AtomicBool = AtomicBool::new(false);

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

/// How the scratch of a call is cut: what all tasks read comes first, then a slice for each task.
#[derive(Debug, Clone, Copy)]
struct ScratchPlan {
    /// Elements between rounded rows of `x`: a multiple of 16, and never of 1,024, so rows fall into different cache sets.
    x_stride: usize,
    /// Elements of `x` rounded to bf16; 0 if no part needs them.
    rounded: usize,
    /// Elements of `x` copied as they are; f32 parts need a copy only to pad an odd `k`.
    padded: usize,
    /// Elements of `x` as tiles of bf16, two to an element; then `rounded` is 0.
    tiles: usize,
    /// Elements of one task's slice, for dequantized weights and waiting sums.
    task: usize,
    tasks: usize,
}

impl ScratchPlan {
    fn new(
        rows: usize,
        in_features: usize,
        parts: impl Iterator<Item = (WeightType, usize)> + Clone,
        settings: Settings,
    ) -> Self {
        let plain = Self::plain(rows, in_features, parts.clone(), settings);
        #[cfg(target_arch = "x86_64")]
        if settings.isa == Isa::Amx && plain.rounded > 0 {
            let bf16 = parts.filter(|(ty, _)| ty.multiplies_in_bf16());
            let panels = bf16.map(|(_, out_features)| out_features.div_ceil(crate::layout::PANEL)).sum();
            if let Some(tiled) = kernels::TiledPlan::new(rows, in_features, panels) {
                return Self { rounded: 0, tiles: tiled.x, task: tiled.task, ..plain };
            }
        }
        plain
    }

    /// What vector kernels need.
    fn plain(
        rows: usize,
        in_features: usize,
        parts: impl Iterator<Item = (WeightType, usize)>,
        settings: Settings,
    ) -> Self {
        let x_stride = in_features.next_multiple_of(16) + 16;
        let (mut any_bf16, mut any_f32) = (false, false);
        for (ty, _) in parts {
            any_f32 |= !ty.multiplies_in_bf16();
            any_bf16 |= ty.multiplies_in_bf16() && rows > 0;
        }
        let x_elements = rows * x_stride;
        Self {
            x_stride,
            rounded: if any_bf16 { x_elements } else { 0 },
            padded: if any_f32 && !in_features.is_multiple_of(2) { x_elements } else { 0 },
            tiles: 0,
            task: if any_bf16 { task_panels(settings.isa) * PANEL_SCRATCH } else { 0 },
            tasks: settings.threads.max(1),
        }
    }

    fn elements(&self) -> usize {
        self.rounded + self.padded + self.tiles + self.task * self.tasks
    }
}

/// Panels that the kernels of an instruction set dequantize at a time.
fn task_panels(isa: Isa) -> usize {
    match isa {
        // AMX leaves what tiles are not made for to AVX-512.
        Isa::Avx512 | Isa::Amx => 2,
        _ => 1,
    }
}

/// Scratch bytes that [`linear`] needs for these shapes: a pure function of them and of `settings`.
///
/// `parts` lists type and `out_features` of each weight. If any weight is not f32, rows of `x` rounded to bf16 take about `4 * rows *
/// in_features` bytes, and each task takes 16 KiB, or 32 KiB with AVX-512. With [`Isa::Amx`] and 3 rows or more, `rows` is rounded up to 32, takes half of that, and
/// each task takes up to 20 KiB and, if `in_features` is above 320, up to 256 KiB for sums that wait.
pub fn scratch_bytes(rows: usize, in_features: usize, parts: &[(WeightType, usize)], settings: Settings) -> u64 {
    ScratchPlan::new(rows, in_features, parts.iter().copied(), settings).elements() as u64 * size_of::<f32>() as u64
}

/// Multiplies `x` `[rows, in_features]` with the transpose of each part's weight; several weights (query, key and
/// value; gate and up) share one pass over `x`.
///
/// `part.out[r, n] = sum over k of x[r, k] * weight[n, k] + bias[n]`, summed in the order that
/// [`reference::dot`](crate::reference::dot) spells out. The bits of a row do not depend on `rows`, on the other parts
/// or on `settings`. Allocates nothing beyond what rayon needs to start tasks.
///
/// # Panics
/// If a length does not fit the shapes, `scratch` is shorter than [`scratch_bytes`] or not 64-byte aligned, or this CPU lacks
/// `settings.isa` (see [`Isa::require`]).
pub fn linear(x: &[f32], rows: usize, parts: &mut [Output<'_>], scratch: &mut [u8], settings: Settings) {
    let is_whole = linear_until(x, rows, parts, scratch, settings, &NEVER);
    debug_assert!(is_whole, "nobody stops it");
}

/// As [`linear`], and gives up once another thread has set `stop`, after the panels that each task has in hand. Returns whether it ran to its end:
/// otherwise the outputs hold anything.
///
/// # Panics
/// As [`linear`].
#[must_use]
pub fn linear_until(
    x: &[f32],
    rows: usize,
    parts: &mut [Output<'_>],
    scratch: &mut [u8],
    settings: Settings,
    stop: &AtomicBool,
) -> bool {
    run(x, rows, parts, None, scratch, settings, stop) != Done::Stopped
}

/// What becomes of some elements of two outputs, in place of the first: the same whatever elements it is given at a time.
pub type Combine<'a> = &'a (dyn Fn(&mut [f32], &[f32]) + Sync);

/// As [`linear_until`] with two weights of one shape, then `combine(gate.out, up.out)`: a gated unit, whose halves need not both go to memory.
/// Afterwards `gate.out` holds what `combine` made of it, and `up.out` anything.
///
/// `combine` is called from several threads. It sees each element once, and perhaps some that belong to neither output.
///
/// # Panics
/// As [`linear`]; if the weights differ in shape.
#[must_use]
pub fn linear_gated_until(
    x: &[f32],
    rows: usize,
    [gate, up]: [Output<'_>; 2],
    combine: Combine<'_>,
    scratch: &mut [u8],
    settings: Settings,
    stop: &AtomicBool,
) -> bool {
    assert_eq!(gate.weight.out_features(), up.weight.out_features(), "gate and up differ in out_features");
    let mut parts = [gate, up];
    let done = run(x, rows, &mut parts, Some(combine), scratch, settings, stop);
    if done == Done::Multiplied {
        let [gate, up] = parts;
        in_shares(up.out, 1, gate.out, 1, settings.threads.max(1), INLINE_COMBINING, |up, gate| combine(gate, up));
    }
    done != Done::Stopped
}

/// How far a call came.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Done {
    Stopped,
    Multiplied,
    /// What was asked to be combined is, too.
    Combined,
}

/// The checks and the kernels of a call. Two parts are combined by kernels that do so with a product.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, unused_variables, reason = "only AMX combines"))]
fn run(
    x: &[f32],
    rows: usize,
    parts: &mut [Output<'_>],
    combine: Option<Combine<'_>>,
    scratch: &mut [u8],
    settings: Settings,
    stop: &AtomicBool,
) -> Done {
    let Some(first) = parts.first() else { return Done::Multiplied };
    let in_features = first.weight.in_features();
    check(x, rows, in_features, parts);
    if rows == 0 {
        return Done::Multiplied;
    }
    let shapes = parts.iter().map(|part| (part.weight.weight_type(), part.weight.out_features()));
    let plan = ScratchPlan::new(rows, in_features, shapes, settings);
    let scratch = scratch_elements(scratch, plan);
    let call = Call { x, in_features, plan, stop };
    let mut combined = false;
    let found = match settings.isa {
        Isa::Scalar => {
            call.run(Scalar, parts, scratch);
            true
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => kernels::Avx2::detect().map(|kernel| call.run(kernel, parts, scratch)).is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernels::Avx512::detect().map(|kernel| call.run(kernel, parts, scratch)).is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => kernels::Amx::detect().map(|amx| combined = call.run_amx(amx, parts, combine, scratch)).is_some(),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => kernels::Neon::detect().map(|kernel| call.run(kernel, parts, scratch)).is_some(),
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
    };
    assert!(found, "this CPU has no {}, or the system does not permit it", settings.isa);
    match stop.load(Ordering::Relaxed) {
        true => Done::Stopped,
        false if combined => Done::Combined,
        false => Done::Multiplied,
    }
}

/// Rows that one weight of [`linear_groups`] multiplies.
#[derive(Debug)]
pub struct Group<'a> {
    /// The packed weight.
    pub weight: &'a PackedWeight,
    /// `[rows, in_features]`; at least one row.
    pub x: &'a [f32],
    /// `[rows, out_features]`, overwritten with the result.
    pub out: &'a mut [f32],
}

/// Groups that share a pass of [`linear_groups`]; more are done in several.
const GROUPS_PER_PASS: usize = 64;

/// Scratch bytes that [`linear_groups`] needs for `rows` rows in all groups together: a pure function of its arguments.
pub fn group_scratch_bytes(
    rows: usize,
    in_features: usize,
    out_features: usize,
    ty: WeightType,
    settings: Settings,
) -> u64 {
    ScratchPlan::plain(rows, in_features, [(ty, out_features)].into_iter(), settings).elements() as u64
        * size_of::<f32>() as u64
}

/// Multiplies the rows of each group with the transpose of its own weight: a mixture's experts in decoding, many weights with a row or
/// a few each. All weights have one shape and type, and threads share the columns of all of them.
///
/// The bits of a row are those that [`linear`] gives it. Allocates nothing beyond what rayon needs to start tasks.
///
/// # Panics
/// If shapes or types differ or do not fit, `scratch` is shorter than [`group_scratch_bytes`] or not 64-byte aligned, or this CPU
/// lacks `settings.isa` (see [`Isa::require`]).
pub fn linear_groups(groups: &mut [Group<'_>], scratch: &mut [u8], settings: Settings) {
    let Some(first) = groups.first() else { return };
    let (in_features, out_features) = (first.weight.in_features(), first.weight.out_features());
    let ty = first.weight.weight_type();
    let mut all_rows = 0;
    for (index, group) in groups.iter().enumerate() {
        let rows = group.x.len() / in_features;
        let shape = (group.weight.in_features(), group.weight.out_features(), group.weight.weight_type());
        assert_eq!(shape, (in_features, out_features, ty), "group {index}: shape or type differs from group 0");
        assert!(rows > 0 && group.x.len() == rows * in_features, "group {index}: x is not [rows, {in_features}]");
        assert_eq!(group.out.len(), rows * out_features, "group {index}: out is not [{rows}, {out_features}]");
        all_rows += rows;
    }
    let plan = ScratchPlan::plain(all_rows, in_features, [(ty, out_features)].into_iter(), settings);
    let scratch = scratch_elements(scratch, plan);
    let found = match settings.isa {
        Isa::Scalar => {
            run_groups(Scalar, groups, plan, scratch);
            true
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => kernels::Avx2::detect().map(|kernel| run_groups(kernel, groups, plan, scratch)).is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernels::Avx512::detect().map(|kernel| run_groups(kernel, groups, plan, scratch)).is_some(),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => kernels::Amx::detect().map(|amx| run_groups(amx.vectors(), groups, plan, scratch)).is_some(),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => false,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => kernels::Neon::detect().map(|kernel| run_groups(kernel, groups, plan, scratch)).is_some(),
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => false,
    };
    assert!(found, "this CPU has no {}, or the system does not permit it", settings.isa);
}

/// Rounds or pads the rows of all groups, then multiplies them.
fn run_groups<K: Kernel>(kernel: K, groups: &mut [Group<'_>], plan: ScratchPlan, scratch: &mut [f32]) {
    let (operands, tasks) = scratch.split_at_mut(plan.rounded + plan.padded);
    let mut rest = &mut *operands;
    for groups in groups.chunks_mut(GROUPS_PER_PASS) {
        let mut pass = [const { None }; GROUPS_PER_PASS];
        let (mut rows, mut in_features) = (0, 0);
        for (slot, group) in pass.iter_mut().zip(groups) {
            in_features = group.weight.in_features();
            let group_rows = group.x.len() / in_features;
            rows += group_rows;
            let operand = if plan.rounded + plan.padded == 0 {
                Operand { data: group.x, stride: in_features }
            } else {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(group_rows * plan.x_stride);
                rest = others;
                let round = plan.rounded > 0;
                prepare(group.x, in_features, own, plan.x_stride, 1, |x, out| {
                    if round { kernel.round(x, out) } else { out.copy_from_slice(x) }
                });
                Operand { data: own, stride: plan.x_stride }
            };
            *slot = Some(Part::new(group.weight, None, operand, group.out));
        }
        Product::new(&pass, rows, in_features, plan.tasks, &NEVER).run_groups(kernel, plan.tasks, tasks);
    }
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
    let bytes = plan.elements() * size_of::<f32>();
    if bytes == 0 {
        return &mut [];
    }
    assert!(scratch.len() >= bytes, "{} bytes of scratch, {bytes} needed", scratch.len());
    assert!(scratch.as_ptr().addr().is_multiple_of(SCRATCH_ALIGN), "scratch is not {SCRATCH_ALIGN}-byte aligned");
    bytemuck::cast_slice_mut(&mut scratch[..bytes])
}

/// A call without its weights.
struct Call<'a> {
    x: &'a [f32],
    in_features: usize,
    plan: ScratchPlan,
    stop: &'a AtomicBool,
}

impl Call<'_> {
    fn rows(&self) -> usize {
        self.x.len() / self.in_features
    }

    /// `x` as f32 parts read it.
    fn exact<'b>(&'b self, padded: &'b mut [f32]) -> Operand<'b> {
        let stride = self.plan.x_stride;
        if padded.is_empty() {
            return Operand { data: self.x, stride: self.in_features };
        }
        prepare(self.x, self.in_features, padded, stride, self.plan.tasks, |x, out| out.copy_from_slice(x));
        Operand { data: padded, stride }
    }

    /// All parts on vector kernels.
    fn run<K: Kernel>(&self, kernel: K, parts: &mut [Output<'_>], scratch: &mut [f32]) {
        let (rounded, rest) = scratch.split_at_mut(self.plan.rounded);
        let (padded, tasks) = rest.split_at_mut(self.plan.padded);
        let stride = self.plan.x_stride;
        prepare(self.x, self.in_features, rounded, stride, self.plan.tasks, |x, out| kernel.round(x, out));
        let rounded = Operand { data: rounded, stride };
        let exact = self.exact(padded);
        in_passes(
            parts,
            |_| true,
            |ty| if ty.multiplies_in_bf16() { rounded } else { exact },
            |pass| {
                let threads = self.plan.tasks;
                Product::new(pass, self.rows(), self.in_features, threads, self.stop).run(kernel, threads, tasks);
            },
        );
    }

    /// `x` as tiles of operands.
    #[cfg(target_arch = "x86_64")]
    fn round_to_tiles<'b>(&self, amx: kernels::Amx, tiles: &'b mut [f32]) -> &'b [f32] {
        let x_rows = 2 * kernels::TILE;
        let block_elements = self.plan.tiles / self.rows().div_ceil(x_rows);
        in_shares(
            self.x,
            x_rows * self.in_features,
            tiles,
            block_elements,
            self.plan.tasks,
            INLINE_ROUNDING,
            |x, out| {
                amx.round_to_tiles(x, self.in_features, out);
            },
        );
        tiles
    }

    /// Parts in bf16 on tiles if the plan says so, all others on vectors. Two parts that are all on tiles are combined, if `combine` is there: returns
    /// whether they were.
    #[cfg(target_arch = "x86_64")]
    fn run_amx(
        &self,
        amx: kernels::Amx,
        parts: &mut [Output<'_>],
        combine: Option<Combine<'_>>,
        scratch: &mut [f32],
    ) -> bool {
        if self.plan.tiles == 0 {
            self.run(amx.vectors(), parts, scratch);
            return false;
        }
        let combine = combine.filter(|_| parts.iter().all(|part| part.weight.weight_type().multiplies_in_bf16()));
        let (x_tiles, rest) = scratch.split_at_mut(self.plan.tiles);
        let (padded, tasks) = rest.split_at_mut(self.plan.padded);
        let threads = self.plan.tasks;
        let x_tiles = self.round_to_tiles(amx, x_tiles);
        let none = Operand { data: &[], stride: 0 };
        in_passes(
            parts,
            WeightType::multiplies_in_bf16,
            |_| none,
            |pass| {
                kernels::TiledProduct::new(pass, x_tiles, self.rows(), self.in_features, threads, self.stop)
                    .combined(combine)
                    .run(amx, threads, tasks);
            },
        );
        let exact = self.exact(padded);
        in_passes(
            parts,
            |ty| !ty.multiplies_in_bf16(),
            |_| exact,
            |pass| {
                Product::new(pass, self.rows(), self.in_features, threads, self.stop).run(
                    amx.vectors(),
                    threads,
                    tasks,
                );
            },
        );
        combine.is_some()
    }
}

/// Hands the chosen parts to `run`, some at a time.
fn in_passes<'x>(
    parts: &mut [Output<'_>],
    chosen: impl Fn(WeightType) -> bool,
    x: impl Fn(WeightType) -> Operand<'x>,
    mut run: impl FnMut(&[Option<Part<'_>>]),
) {
    let mut chosen = parts.iter_mut().filter(|part| chosen(part.weight.weight_type())).peekable();
    while chosen.peek().is_some() {
        let mut pass = [const { None }; PARTS_PER_PASS];
        for (slot, part) in pass.iter_mut().zip(&mut chosen) {
            *slot = Some(Part::new(part.weight, part.bias, x(part.weight.weight_type()), part.out));
        }
        run(&pass);
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
    in_shares(x, in_features, out, stride, threads, INLINE_ROUNDING, convert_rows);
}

/// Calls `convert` with whole rows of `from` and `to` (the last row of `from` may be shorter), on several threads from `least` elements on.
fn in_shares(
    from: &[f32],
    from_row: usize,
    to: &mut [f32],
    to_row: usize,
    threads: usize,
    least: usize,
    convert: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    let rows = from.len().div_ceil(from_row);
    if threads == 1 || rows == 1 || from.len() < least {
        return convert(from, to);
    }
    let share = rows.div_ceil(threads);
    rayon::in_place_scope(|scope| {
        let convert = &convert;
        for (from, to) in from.chunks(share * from_row).zip(to.chunks_mut(share * to_row)) {
            scope.spawn(move |_| convert(from, to));
        }
    });
}
