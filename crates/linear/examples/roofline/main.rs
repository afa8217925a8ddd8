//! Measures products against this machine's own peak: `cargo run --release --example roofline [isa [threads [type [rows]]]]`.
//!
//! `auto` stands for the best instruction set and `all` for every type; lists are separated by commas. `--shapes 576x1536,..`: inputs x
//! outputs; `--ms N`: the time each product gets; `--json`: one object a line; `--peaks`: only the peaks, of every instruction that multiplies.
//!
//! The peak is that of the instruction the kernel lives on, from registers only, measured next to each product: `tdpbf16ps` for AMX (but
//! fused multiply-adds of 512 bits for f32 weights and for few rows), else fused multiply-adds. With one thread, times are CPU times of that
//! thread, so that other work on the machine counts less. Two shares are printed: of the shortest runs of both, and the median over pairs
//! of runs, which other tenants of the machine (a sibling hyperthread shares the matrix unit) lower.
#![expect(unsafe_code, reason = "instructions that were detected, and a system clock")]
#![expect(clippy::print_stdout, reason = "prints its measurements")]

mod peaks;

use std::hint::black_box;

use peaks::{Peak, now};
use plimsoll_linear::{Isa, Output, PackedWeight, Settings, WeightType, linear, scratch_bytes};

/// Aligned scratch.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Shapes of SmolLM2 135M and Gemma 3 270M, and a large square.
const SHAPES: [(usize, usize); 8] =
    [(576, 576), (576, 1536), (1536, 576), (576, 49152), (640, 1024), (640, 2048), (2048, 640), (4096, 4096)];
const ROWS: [usize; 7] = [2048, 512, 64, 8, 4, 2, 1];

/// The command line.
struct Options {
    settings: Settings,
    /// GGML's names; every type if `None`.
    types: Option<Vec<String>>,
    rows: Vec<usize>,
    shapes: Vec<(usize, usize)>,
    seconds: f64,
    json: bool,
    only_peaks: bool,
}

impl Options {
    fn read() -> Self {
        let (mut words, mut shapes, mut ms, mut json, mut only_peaks) = (Vec::new(), None, 1000.0, false, false);
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => json = true,
                "--peaks" => only_peaks = true,
                "--ms" => ms = args.next().and_then(|ms| ms.parse().ok()).expect("--ms takes milliseconds"),
                "--shapes" => shapes = Some(args.next().expect("--shapes takes a list like 576x1536,1536x576")),
                _ => words.push(arg),
            }
        }
        let mut words = words.into_iter();
        let isa = words.next().filter(|isa| isa != "auto");
        let isa = isa.map_or_else(|| Ok(Isa::detect()), |name| name.parse::<Isa>().and_then(Isa::require));
        let isa = isa.expect("an instruction set of this machine");
        let threads = words.next().map_or(1, |threads| threads.parse().expect("a number of threads"));
        let types = words.next().filter(|types| types != "all");
        let rows = words.next();
        Self {
            settings: Settings { isa, threads },
            types: types.map(|types| types.split(',').map(str::to_uppercase).collect()),
            rows: rows.map_or_else(
                || ROWS.to_vec(),
                |list| list.split(',').map(|rows| rows.parse().expect("numbers of rows")).collect(),
            ),
            shapes: shapes.map_or_else(|| SHAPES.to_vec(), |list| list.split(',').map(shape).collect()),
            seconds: ms / 1e3,
            json,
            only_peaks,
        }
    }

    fn takes(&self, ty: WeightType) -> bool {
        self.types.as_ref().is_none_or(|types| types.iter().any(|name| ty.name() == name))
    }
}

fn shape(text: &str) -> (usize, usize) {
    let shape = text.split_once('x').and_then(|(inputs, outputs)| Some((inputs.parse().ok()?, outputs.parse().ok()?)));
    shape.expect("a shape like 576x1536")
}

fn main() {
    let options = Options::read();
    let Settings { isa, threads } = options.settings;
    if options.only_peaks {
        return print_peaks(&options);
    }
    if !options.json {
        println!("{isa} with {threads} thread(s)");
    }
    for &rows in &options.rows {
        for &(in_features, out_features) in &options.shapes {
            for ty in WeightType::ALL {
                if options.takes(ty) && in_features % ty.block_elements() == 0 {
                    product(ty, rows, in_features, out_features, &options);
                }
            }
        }
    }
}

fn print_peaks(options: &Options) {
    let threads = options.settings.threads;
    for peak in Peak::available() {
        // The best of many: whatever disturbs can only make it slower.
        let start = std::time::Instant::now();
        let mut best = peak.wall_macs_per_second(threads);
        while start.elapsed().as_secs_f64() < options.seconds {
            best = best.max(peak.wall_macs_per_second(threads));
        }
        if options.json {
            println!("{{\"peak\": \"{}\", \"threads\": {threads}, \"macs_per_second\": {best:.0}}}", peak.name);
        } else {
            println!("{:>12}: {:8.1} GMAC/s with {threads} thread(s)", peak.name, best / 1e9);
        }
    }
}

/// The instruction that the kernels for these rows live on.
fn peak_of(isa: Isa, ty: WeightType, rows: usize) -> Option<Peak> {
    let name = match isa {
        Isa::Amx if rows < 3 || ty == WeightType::F32 => "avx512-f32",
        Isa::Amx => "amx-bf16",
        Isa::Avx512 => "avx512-f32",
        Isa::Avx2 => "avx2-f32",
        // Plain Rust has no instruction of its own: what it is compiled to depends on the target.
        Isa::Scalar => return None,
        _ => "neon-f32",
    };
    Peak::available().into_iter().find(|peak| peak.name == name)
}

fn product(ty: WeightType, rows: usize, in_features: usize, out_features: usize, options: &Options) {
    let settings = options.settings;
    // Scales of 2^-8 (0x1c00 as f16) everywhere: numbers that neither overflow nor vanish.
    let mut bytes = vec![0x1c; ty.row_bytes(in_features).expect("whole blocks") * out_features];
    for (i, byte) in bytes.iter_mut().enumerate().filter(|(i, _)| i % 2 == 0) {
        *byte = u8::try_from(i * 7 % 31).expect("below 31");
    }
    let weight = PackedWeight::pack(ty, out_features, in_features, &bytes, settings.threads).expect("valid shape");
    let x: Vec<f32> = (0..rows * in_features).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
    let mut out = vec![0.0; rows * out_features];
    let needed = scratch_bytes(rows, in_features, &[(ty, out_features)], settings);
    let mut lines: Vec<Line> = bytemuck::zeroed_vec(usize::try_from(needed).expect("fits").div_ceil(64));
    let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
    let peak = peak_of(settings.isa, ty, rows);
    let macs = (rows * in_features * out_features) as f64;
    let (mut best, mut best_peak, mut shares) = (f64::INFINITY, 0.0f64, Vec::new());
    let started = std::time::Instant::now();
    while started.elapsed().as_secs_f64() < options.seconds || shares.len() < 5 {
        let peak_now = peak.map_or(f64::NAN, |peak| peak.macs_per_second(settings.threads));
        let start = now(settings.threads);
        linear(&x, rows, &mut [Output { weight: &weight, bias: None, out: &mut out }], scratch, settings);
        let seconds = (now(settings.threads) - start).as_secs_f64();
        black_box(&mut out);
        best = best.min(seconds);
        best_peak = best_peak.max(peak_now);
        shares.push(macs / seconds / peak_now * 100.0);
    }
    if options.json {
        println!(
            "{{\"isa\": \"{}\", \"threads\": {}, \"type\": \"{ty}\", \"rows\": {rows}, \"in_features\": {in_features}, \
             \"out_features\": {out_features}, \"seconds\": {best:.9}, \"macs\": {macs}, \"peak\": {}, \"scratch_bytes\": {needed}}}",
            settings.isa,
            settings.threads,
            peak.map_or_else(|| "null".to_owned(), |peak| format!("\"{}\"", peak.name)),
        );
        return;
    }
    let shape = format!(
        "{ty:>5} {rows:>4} x {in_features:>4} x {out_features:>5}: {:9.3} ms, {:7.1} GMAC/s",
        best * 1e3,
        macs / best / 1e9
    );
    let gigabytes_per_second = weight.bytes() as f64 / best / 1e9;
    let Some(peak) = peak else {
        println!("{shape}, {gigabytes_per_second:5.1} GB/s of weights");
        return;
    };
    shares.sort_by(f64::total_cmp);
    // The peak counts cycles of the clock that the core really ran at.
    let cycles = best * best_peak / peak.macs_per_cycle;
    println!(
        "{shape}, {:5.1}% (median {:5.1}%) of {:6.1} GMAC/s peak, {:6.3} cycles/weight, {gigabytes_per_second:5.1} GB/s of weights",
        macs / best / best_peak * 100.0,
        shares[shares.len() / 2],
        best_peak / 1e9,
        cycles / (in_features * out_features) as f64,
    );
}
