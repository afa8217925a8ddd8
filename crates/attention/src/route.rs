//! Which kernels run, from the shape alone, and what they need.

use std::sync::atomic::AtomicBool;

#[cfg(target_arch = "aarch64")]
use crate::kernels::Neon;
use crate::kernels::Scalar;
#[cfg(target_arch = "x86_64")]
use crate::kernels::{Amx, Avx2, Avx512};
use crate::keys::Keys;
use crate::plan::Plan;
use crate::tile;
use crate::view::{check_axis, check_values};
use crate::{Error, Isa, KvDtype, KvValues, KvView};

/// Shape of one attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttnShape {
    /// Query rows (tokens of one sequence).
    pub rows: usize,
    /// Keys visible to the last row. Neither the route nor the workspace depends on it.
    pub kv_len: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one query and one key.
    pub head_dim: usize,
    /// Elements of one value.
    pub v_head_dim: usize,
    /// Number format of the KV blocks.
    pub kv_dtype: KvDtype,
    /// Where the values of the KV blocks are.
    pub kv_values: KvValues,
    /// Keys each row sees, itself included; `None` sees all before it.
    pub window: Option<usize>,
}

impl AttnShape {
    /// Refuses axes of no elements or of too many, KV heads that do not divide the query heads, values longer than the keys they are in, and a
    /// window of no tokens.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { heads, kv_heads, head_dim, v_head_dim, kv_values, window, .. } = *self;
        for (axis, length) in
            [("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim), ("v_head_dim", v_head_dim)]
        {
            check_axis(axis, length)?;
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::HeadGroups { heads, kv_heads });
        }
        check_values(kv_values, head_dim, v_head_dim)?;
        match window {
            Some(0) => Err(Error::Window { expected: window, actual: window }),
            _ => Ok(()),
        }
    }
}

/// What an attention layer adds to the plain formula.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnParams<'a> {
    /// Factor of each dot product, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// As [`AttnShape::window`].
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// One logit per head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// A family of kernels. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouteKind {
    /// Tiles of rows against KV blocks, on the chosen instruction set.
    Tiled,
    /// The definition, one row of one head at a time in plain code: slow, for tests.
    Reference,
}

/// Start-up settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Forces a family of kernels.
    pub route: Option<RouteKind>,
    /// Instruction set, one that this CPU has: [`Isa::require`] checks it, and so does [`Route::run`].
    pub isa: Isa,
    /// Most tasks at once, on the caller's rayon pool; 1 runs in the caller's thread.
    pub threads: usize,
}

/// The kernels for one shape. A pure function of shape and settings: memory has no say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    kind: RouteKind,
    isa: Isa,
    threads: usize,
    shape: AttnShape,
}

impl Route {
    /// Chooses the kernels.
    pub fn for_shape(shape: &AttnShape, settings: &Settings) -> Self {
        Self {
            kind: settings.route.unwrap_or(RouteKind::Tiled),
            isa: settings.isa,
            threads: settings.threads.max(1),
            shape: *shape,
        }
    }

    /// Scratch bytes of a call of this shape, the same at every `kv_len`.
    ///
    /// With [`KvValues::InKeys`] each task has one more part of `64 * v_head_dim` elements, into which it transposes the values of a block once
    /// for all rows and query heads of a tile.
    pub fn workspace_bytes(&self, shape: &AttnShape) -> u64 {
        match self.kind {
            RouteKind::Reference => 0,
            RouteKind::Tiled => Plan::new(shape, self.threads).bytes(),
        }
    }

    /// `{instruction set}-{KV type}-{variant}`, for logs and tests.
    pub fn name(&self) -> &'static str {
        let unpacked = Plan::new(&self.shape, self.threads).unpacks();
        macro_rules! names {
            ($($isa:literal => $variant:ident),*) => { match self.shape.kv_dtype {
                KvDtype::F32 => names!(@ "f32", $($isa => $variant),*),
                KvDtype::F16 => names!(@ "f16", $($isa => $variant),*),
                KvDtype::Bf16 => names!(@ "bf16", $($isa => $variant),*),
            }};
            (@ $dtype:literal, $($isa:literal => $variant:ident),*) => { match self.isa {
                $(Isa::$variant if unpacked => concat!($isa, "-", $dtype, "-tiled"),
                Isa::$variant => concat!($isa, "-", $dtype, "-direct"),)*
            }};
        }
        match self.kind {
            RouteKind::Reference => "scalar-reference",
            RouteKind::Tiled => {
                names!("scalar" => Scalar, "avx2" => Avx2, "avx512" => Avx512, "amx" => Amx, "neon" => Neon)
            }
        }
    }

    /// Which family runs.
    pub const fn kind(&self) -> RouteKind {
        self.kind
    }

    /// Causal attention of one segment over its keys.
    ///
    /// `q`: `[rows, heads, head_dim]`; `out`: `[rows, heads, v_head_dim]`. Row `i` stands at position `start + i` and sees the keys at
    /// and before it, inside its window. `rows` is read off `q`. Scratch: [`Route::workspace_bytes`], starting at a multiple of 64 bytes.
    /// A row has the same bits at every number of rows and threads, instruction set and route. Scores that overflow give NaN.
    ///
    /// Partial results per KV block, each with its own maximum, folded in ascending order: Milakov and Gimelshein 2018, arXiv:1805.02867,
    /// and Dao 2023, arXiv:2307.08691.
    ///
    /// # Errors
    /// [`Error`], all but the block checks of [`KvView::new`]; nothing is written then.
    pub fn run(
        &self,
        q: &[f32],
        view: &KvView<'_>,
        start: usize,
        params: &AttnParams<'_>,
        out: &mut [f32],
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        self.run_until(q, view, start, params, out, scratch, &tile::NEVER)
    }

    /// As [`Route::run`], and gives up soon after another thread has set `stop`. Calls of a few rows, which are short, may look at it at their end
    /// alone; others do before each KV block of a tile, and the definition before each row of a head.
    ///
    /// # Errors
    /// As [`Route::run`]; [`Error::Stopped`] if `stop` was set in time: `out` then holds anything.
    #[expect(clippy::too_many_arguments, reason = "those of `run`, and who may end it")]
    pub fn run_until(
        &self,
        q: &[f32],
        view: &KvView<'_>,
        start: usize,
        params: &AttnParams<'_>,
        out: &mut [f32],
        scratch: &mut [u8],
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let shape = self.check(q, view, start, params, out)?;
        let needed_bytes = self.workspace_bytes(&shape);
        if (scratch.len() as u64) < needed_bytes {
            return Err(Error::ScratchBytes { needed_bytes, actual_bytes: scratch.len() as u64 });
        }
        let offset = scratch.as_ptr() as usize % 64;
        if offset != 0 && needed_bytes > 0 {
            return Err(Error::ScratchAlignment { offset });
        }
        if shape.rows == 0 {
            return Ok(());
        }
        let call = tile::Call { shape: &shape, q, keys: Keys::Blocks(view), start, params, heads_first: false, stop };
        match self.kind {
            RouteKind::Reference => tile::run_plain(&call, view, out),
            RouteKind::Tiled => run_on(self.isa, &Plan::new(&shape, self.threads), &call, out, scratch)?,
        }
        if call.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// The shape of this call, with the rows found in `q`.
    fn check(
        &self,
        q: &[f32],
        view: &KvView<'_>,
        start: usize,
        params: &AttnParams<'_>,
        out: &[f32],
    ) -> Result<AttnShape, Error> {
        self.shape.check()?;
        let AttnShape { heads, kv_heads, head_dim, v_head_dim, window, .. } = self.shape;
        let layout = view.layout();
        for (field, expected, actual) in [
            ("kv_heads", kv_heads, layout.kv_heads),
            ("head_dim", head_dim, layout.head_dim),
            ("v_head_dim", v_head_dim, layout.v_head_dim),
        ] {
            if expected != actual {
                return Err(Error::LayoutMismatch { field, expected, actual });
            }
        }
        if layout.dtype != self.shape.kv_dtype {
            return Err(Error::DtypeMismatch { expected: self.shape.kv_dtype, actual: layout.dtype });
        }
        if layout.values != self.shape.kv_values {
            return Err(Error::ValuesMismatch { expected: self.shape.kv_values, actual: layout.values });
        }
        if params.window != window {
            return Err(Error::Window { expected: window, actual: params.window });
        }
        if let Some(sinks) = params.sinks
            && sinks.len() != heads
        {
            return Err(Error::SliceLength { slice: "sinks", expected: heads, actual: sinks.len() });
        }
        let rows = q.len() / (heads * head_dim);
        for (slice, expected, actual) in
            [("q", rows * heads * head_dim, q.len()), ("out", rows * heads * v_head_dim, out.len())]
        {
            if expected != actual {
                return Err(Error::SliceLength { slice, expected, actual });
            }
        }
        let kv_len = view.kv_len();
        if rows > kv_len || start > kv_len - rows {
            return Err(Error::RowsPastKeys { start, rows, kv_len });
        }
        let needed_position = window.map_or(0, |window| (start + 1).saturating_sub(window));
        let first_position = view.first_block() * crate::KV_BLOCK_TOKENS;
        if rows > 0 && needed_position < first_position {
            return Err(Error::KeysDropped { needed_position, first_position });
        }
        Ok(AttnShape { rows, kv_len, ..self.shape })
    }
}

/// Runs a checked call on an instruction set.
///
/// # Errors
/// [`Error::IsaUnavailable`].
pub(crate) fn run_on(
    isa: Isa,
    plan: &Plan,
    call: &tile::Call<'_>,
    out: &mut [f32],
    scratch: &mut [u8],
) -> Result<(), Error> {
    let missing = || Error::IsaUnavailable { isa, best: Isa::detect() };
    match isa {
        Isa::Scalar => tile::run(Scalar, plan, call, out, scratch),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => tile::run(Avx2::detect().ok_or_else(missing)?, plan, call, out, scratch),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => tile::run(Avx512::detect().ok_or_else(missing)?, plan, call, out, scratch),
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => tile::run(Amx::detect().ok_or_else(missing)?, plan, call, out, scratch),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Amx => return Err(missing()),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => tile::run(Neon::detect().ok_or_else(missing)?, plan, call, out, scratch),
        #[cfg(not(target_arch = "aarch64"))]
        Isa::Neon => return Err(missing()),
    }
    Ok(())
}
