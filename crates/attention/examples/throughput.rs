//! Multiply-adds per second of attention over shapes, routes and instruction sets: `cargo run --release --example throughput`.
//!
//! Lists are separated by commas, and every combination is measured. `--isa avx512,avx2`; `--threads N`; `--kv-dtype bf16,f16,f32`;
//! `--heads 9:3:64,4:1:256` (query heads : KV heads : head_dim); `--rows 512,1`; `--kv-lens 2048,8192`; `--routes tiled,reference`;
//! `--ms N`: the time each gets; `--json`: one object a line. The rows are the last ones of `kv_len` tokens, and see all before them.
//! The shortest call counts. Two multiply-adds per element of a key and its value are counted; the softmax is not.
#![expect(clippy::print_stdout, reason = "prints its measurements")]

use std::hint::black_box;
use std::time::Instant;

use plimsoll_attention::{
    AttnParams, AttnShape, Isa, KV_BLOCK_TOKENS, KvBlock, KvDtype, KvLayout, KvValues, KvView, Route, RouteKind,
    Settings,
};

/// Aligned bytes.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The command line.
struct Options {
    isas: Vec<Isa>,
    threads: usize,
    dtypes: Vec<(&'static str, KvDtype)>,
    /// Query heads, KV heads, `head_dim`.
    heads: Vec<[usize; 3]>,
    rows: Vec<usize>,
    kv_lens: Vec<usize>,
    routes: Vec<(&'static str, RouteKind)>,
    seconds: f64,
    json: bool,
}

const DTYPES: [(&str, KvDtype); 3] = [("bf16", KvDtype::Bf16), ("f16", KvDtype::F16), ("f32", KvDtype::F32)];
const ROUTES: [(&str, RouteKind); 2] = [("tiled", RouteKind::Tiled), ("reference", RouteKind::Reference)];

impl Options {
    fn read() -> Self {
        let mut options = Self {
            isas: vec![Isa::detect()],
            threads: 1,
            dtypes: vec![DTYPES[0]],
            heads: vec![[9, 3, 64], [16, 8, 128], [4, 1, 256]],
            rows: vec![512, 1],
            kv_lens: vec![512, 2048, 8192],
            routes: vec![ROUTES[0]],
            seconds: 0.5,
            json: false,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            if name == "--json" {
                options.json = true;
                continue;
            }
            let text = args.next().unwrap_or_default();
            let list = text.split(',');
            match name.as_str() {
                "--isa" => options.isas = list.map(isa).collect(),
                "--threads" => options.threads = number(&text),
                "--kv-dtype" => options.dtypes = list.map(|name| named(&DTYPES, name)).collect(),
                "--heads" => options.heads = list.map(heads).collect(),
                "--rows" => options.rows = list.map(number).collect(),
                "--kv-lens" => options.kv_lens = list.map(number).collect(),
                "--routes" => options.routes = list.map(|name| named(&ROUTES, name)).collect(),
                "--ms" => options.seconds = number(&text) as f64 / 1e3,
                _ => panic!("{name} is no option; the file's first lines list them"),
            }
        }
        options
    }
}

fn isa(name: &str) -> Isa {
    let isa = if name == "auto" { Ok(Isa::detect()) } else { name.parse::<Isa>().and_then(Isa::require) };
    isa.expect("an instruction set of this machine")
}

fn number(text: &str) -> usize {
    text.parse().expect("a number")
}

fn named<T: Copy>(all: &[(&'static str, T)], name: &str) -> (&'static str, T) {
    *all.iter().find(|(known, _)| *known == name).expect("a known name")
}

fn heads(text: &str) -> [usize; 3] {
    let heads: Vec<usize> = text.split(':').map(number).collect();
    heads.try_into().expect("heads:kv_heads:head_dim")
}

fn main() {
    let options = Options::read();
    for &heads in &options.heads {
        for &dtype in &options.dtypes {
            for &kv_len in &options.kv_lens {
                keys(heads, dtype, kv_len, &options);
            }
        }
    }
}

/// Everything that is measured on these keys and values.
fn keys(
    [heads, kv_heads, head_dim]: [usize; 3],
    (dtype_name, dtype): (&str, KvDtype),
    kv_len: usize,
    options: &Options,
) {
    let layout = KvLayout { kv_heads, head_dim, v_head_dim: head_dim, dtype, values: KvValues::Own };
    let blocks = blocks(&layout, kv_len);
    let block = |(k, v)| KvBlock { k: bytemuck::cast_slice(k), v: bytemuck::cast_slice(v) };
    let table: Vec<_> = blocks.iter().map(|(k, v): &(Vec<Line>, Vec<Line>)| block((k, v))).collect();
    let view = KvView::new(layout, &table, kv_len).expect("blocks of this layout");
    for &rows in options.rows.iter().filter(|&&rows| rows <= kv_len) {
        let shape = AttnShape {
            rows,
            kv_len,
            heads,
            kv_heads,
            head_dim,
            v_head_dim: head_dim,
            kv_dtype: dtype,
            kv_values: KvValues::Own,
            window: None,
        };
        for &route in &options.routes {
            // The reference is plain code whatever the instruction set.
            let isas = if route.1 == RouteKind::Reference { &options.isas[..1] } else { &options.isas };
            for &isa in isas {
                measure(&shape, &view, isa, route, dtype_name, options);
            }
        }
    }
}

fn measure(
    shape: &AttnShape,
    view: &KvView<'_>,
    isa: Isa,
    (route_name, kind): (&str, RouteKind),
    dtype: &str,
    options: &Options,
) {
    let AttnShape { rows, kv_len, heads, kv_heads, head_dim, .. } = *shape;
    let route = Route::for_shape(shape, &Settings { route: Some(kind), isa, threads: options.threads });
    let workspace_bytes = route.workspace_bytes(shape);
    let mut scratch = aligned(usize::try_from(workspace_bytes).expect("fits"));
    let params = AttnParams { scale: 0.125, window: None, softcap: None, sinks: None };
    let (q, mut out) = (numbers(rows * heads * head_dim), vec![0.0; rows * heads * head_dim]);
    let first = kv_len - rows;
    let pairs: usize = (0..rows).map(|i| first + i + 1).sum();
    let macs = pairs * heads * 2 * head_dim;
    let (mut seconds, started) = (f64::INFINITY, Instant::now());
    while seconds.is_infinite() || started.elapsed().as_secs_f64() < options.seconds {
        let start = Instant::now();
        route
            .run(black_box(&q), view, first, &params, &mut out, bytemuck::cast_slice_mut(&mut scratch))
            .expect("a valid call");
        seconds = seconds.min(start.elapsed().as_secs_f64());
        black_box(&mut out);
    }
    let (name, threads) = (route.name(), options.threads);
    if options.json {
        println!(
            "{{\"route\": \"{route_name}\", \"kernel\": \"{name}\", \"isa\": \"{isa}\", \"threads\": {threads}, \"kv_dtype\": \"{dtype}\", \
             \"heads\": {heads}, \"kv_heads\": {kv_heads}, \"head_dim\": {head_dim}, \"rows\": {rows}, \"kv_len\": {kv_len}, \
             \"seconds\": {seconds:.9}, \"macs\": {macs}, \"workspace_bytes\": {workspace_bytes}}}"
        );
    } else {
        println!(
            "{name:<20} {heads:>2}:{kv_heads} heads of {head_dim:>3}, {rows:>4} rows, {kv_len:>6} keys: {:10.3} ms, {:7.1} GMAC/s, {:8.1} KiB of workspace",
            seconds * 1e3,
            macs as f64 / seconds / 1e9,
            workspace_bytes as f64 / 1024.0,
        );
    }
}

fn aligned(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0).collect()
}

/// Keys and values of `kv_len` tokens, block by block.
fn blocks(layout: &KvLayout, kv_len: usize) -> Vec<(Vec<Line>, Vec<Line>)> {
    let row = layout.kv_heads * layout.head_dim;
    let values = numbers(KV_BLOCK_TOKENS * row + 4096);
    let block = |i: usize| {
        let (mut k, mut v) = (aligned(layout.k_block_bytes()), aligned(layout.v_block_bytes()));
        let rows = &values[i % 61 * 64..][..KV_BLOCK_TOKENS * row];
        let (k_bytes, v_bytes) = (bytemuck::cast_slice_mut(&mut k), bytemuck::cast_slice_mut(&mut v));
        layout.write_rows(k_bytes, v_bytes, 0, rows, rows, KV_BLOCK_TOKENS);
        (k, v)
    };
    (0..kv_len.div_ceil(KV_BLOCK_TOKENS)).map(block).collect()
}
