//! Random calls over blocks whose unwritten bytes are NaN.

use plimsoll_attention::{
    AttnParams, AttnShape, Isa, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route, RouteKind,
    Settings,
};
use proptest::prelude::*;

/// 64 bytes at a multiple of 64.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// Aligned bytes, each `fill`.
pub(crate) fn aligned(bytes: usize, fill: u8) -> Vec<Line> {
    vec![Line([fill; 64]); bytes.div_ceil(64)]
}

/// Numbers in about -1..1 from a seed.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) dtype: KvDtype,
    pub(crate) kv_heads: usize,
    pub(crate) group_size: usize,
    pub(crate) head_dim: usize,
    pub(crate) v_head_dim: usize,
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
    pub(crate) seed: u64,
}

pub(crate) struct Data {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) sinks: Vec<f32>,
}

/// K and V of each block.
pub(crate) struct Blocks(Vec<(Vec<Line>, Vec<Line>)>);

impl Blocks {
    pub(crate) fn table(&self) -> Vec<KvBlock<'_>> {
        self.0.iter().map(|(k, v)| KvBlock { k: bytemuck::cast_slice(k), v: bytemuck::cast_slice(v) }).collect()
    }
}

impl Case {
    pub(crate) fn heads(&self) -> usize {
        self.kv_heads * self.group_size
    }

    pub(crate) fn kv_len(&self) -> usize {
        self.start + self.rows
    }

    pub(crate) fn layout(&self) -> KvLayout {
        KvLayout {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.v_head_dim,
            dtype: self.dtype,
            values: KvValues::Own,
        }
    }

    pub(crate) fn shape(&self) -> AttnShape {
        AttnShape {
            rows: self.rows,
            kv_len: self.kv_len(),
            heads: self.heads(),
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.v_head_dim,
            kv_dtype: self.dtype,
            kv_values: KvValues::Own,
            window: self.window,
        }
    }

    pub(crate) fn params<'a>(&self, data: &'a Data) -> AttnParams<'a> {
        AttnParams {
            scale: 2.0 / (self.head_dim as f32).sqrt(),
            window: self.window,
            softcap: self.softcap,
            sinks: self.sinks.then_some(&data.sinks[..]),
        }
    }

    pub(crate) fn data(&self) -> Data {
        Data {
            q: numbers(self.seed + 1, self.rows * self.heads() * self.head_dim).iter().map(|x| 3.0 * x).collect(),
            k: numbers(self.seed + 2, self.kv_len() * self.kv_heads * self.head_dim),
            v: numbers(self.seed + 3, self.kv_len() * self.kv_heads * self.v_head_dim),
            sinks: numbers(self.seed + 4, self.heads()),
        }
    }

    /// Blocks that hold the first `kv_len` tokens; every other byte is 0xff, NaN in each format.
    pub(crate) fn blocks(&self, data: &Data, kv_len: usize) -> Blocks {
        self.blocks_in(data, kv_len, 0xff)
    }

    /// As [`Case::blocks`], with another value in every other byte.
    pub(crate) fn blocks_in(&self, data: &Data, kv_len: usize, stale: u8) -> Blocks {
        let layout = self.layout();
        let (k_row, v_row) = (self.kv_heads * self.head_dim, self.kv_heads * self.v_head_dim);
        let blocks = (0..kv_len.div_ceil(KV_BLOCK_TOKENS)).map(|index| {
            let (mut k, mut v) = (aligned(layout.k_block_bytes(), stale), aligned(layout.v_block_bytes(), stale));
            let first = index * KV_BLOCK_TOKENS;
            let rows = (kv_len - first).min(KV_BLOCK_TOKENS);
            layout.write_rows(
                bytemuck::cast_slice_mut(&mut k),
                bytemuck::cast_slice_mut(&mut v),
                0,
                &data.k[first * k_row..][..rows * k_row],
                &data.v[first * v_row..][..rows * v_row],
                rows,
            );
            (k, v)
        });
        Blocks(blocks.collect())
    }

    /// Runs rows `from .. from + rows` of the case over the first `kv_len` tokens.
    pub(crate) fn run_rows(
        &self,
        data: &Data,
        from: usize,
        rows: usize,
        kv_len: usize,
        settings: Settings,
    ) -> Vec<f32> {
        let blocks = self.blocks(data, kv_len);
        let table = blocks.table();
        let view = KvView::new(self.layout(), &table, kv_len).unwrap();
        let shape = AttnShape { rows, kv_len, ..self.shape() };
        let route = Route::for_shape(&shape, &settings);
        let mut scratch = aligned(usize::try_from(route.workspace_bytes(&shape)).unwrap(), 0xff);
        let (q_row, out_row) = (self.heads() * self.head_dim, self.heads() * self.v_head_dim);
        let mut out = vec![f32::NAN; rows * out_row];
        let q = &data.q[from * q_row..][..rows * q_row];
        route
            .run(q, &view, self.start + from, &self.params(data), &mut out, bytemuck::cast_slice_mut(&mut scratch))
            .unwrap();
        out
    }

    pub(crate) fn run(&self, data: &Data, settings: Settings) -> Vec<f32> {
        self.run_rows(data, 0, self.rows, self.kv_len(), settings)
    }
}

pub(crate) fn tiled(isa: Isa, threads: usize) -> Settings {
    Settings { route: Some(RouteKind::Tiled), isa, threads }
}

pub(crate) fn best(threads: usize) -> Settings {
    tiled(Isa::detect(), threads)
}

pub(crate) fn plain() -> Settings {
    Settings { route: Some(RouteKind::Reference), isa: Isa::Scalar, threads: 1 }
}

/// Fails with the first element whose bits differ; any NaN equals any NaN.
pub(crate) fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()), "{what}: element {i} is {g:?}, not {w:?}");
    }
}

/// Shapes that real models and odd ones have; the work of a case is bounded.
pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let dims = prop_oneof![
        Just((64, 64)),
        Just((80, 80)),
        Just((72, 72)),
        Just((96, 96)),
        Just((2, 2)),
        Just((7, 5)),
        Just((33, 40)),
        Just((128, 64)),
        Just((192, 128)),
        Just((256, 256)),
        Just((576, 512)),
        (2..=576usize, 1..=100usize),
    ];
    let dtype = prop_oneof![Just(KvDtype::F32), Just(KvDtype::F16), Just(KvDtype::Bf16)];
    let start = prop_oneof![0..4usize, 0..300usize, Just(64), Just(63), Just(127)];
    let rows = prop_oneof![Just(1), 2..8usize, 1..=200usize];
    let window = prop::option::of(prop_oneof![1..4usize, 5..200usize, Just(64)]);
    (
        dtype,
        1..=3usize,
        1..=8usize,
        dims,
        start,
        rows,
        window,
        prop::option::of(0.5f32..30.0),
        any::<bool>(),
        0..u64::MAX / 2,
    )
        .prop_map(
            |(dtype, kv_heads, group_size, (head_dim, v_head_dim), start, rows, window, softcap, sinks, seed)| {
                // Wide heads get fewer rows: about 4 million products a case at most.
                let rows =
                    rows.min(4_000_000 / (kv_heads * group_size * (head_dim + v_head_dim) * (start + rows))).max(1);
                Case { dtype, kv_heads, group_size, head_dim, v_head_dim, start, rows, window, softcap, sinks, seed }
            },
        )
}
