//! Prefill (512 rows) and decode (1 row) for every weight type, on one and two threads, and packing.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_linear::{Output, PackedWeight, Settings, WeightType, linear, scratch_bytes};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn weight(ty: WeightType, out_features: usize, in_features: usize) -> PackedWeight {
    // Scales of about 2^-8 as f16: numbers that neither overflow nor vanish.
    let mut bytes = vec![0x1c; ty.row_bytes(in_features).expect("whole blocks") * out_features];
    for (i, byte) in bytes.iter_mut().step_by(2).enumerate() {
        *byte = u8::try_from(i * 7 % 31).expect("below 31");
    }
    PackedWeight::pack(ty, out_features, in_features, &bytes, 1).expect("valid shape")
}

fn products(c: &mut Criterion) {
    for (name, rows, in_features, out_features) in [("prefill", 512, 768, 1536), ("decode", 1, 1536, 6144)] {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements((rows * in_features * out_features) as u64));
        group.sample_size(20);
        for ty in WeightType::ALL {
            let weight = weight(ty, out_features, in_features);
            let x: Vec<f32> = (0..rows * in_features).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
            let mut out = vec![0.0; rows * out_features];
            for threads in [1, 2] {
                let settings = Settings { threads, ..Settings::default() };
                let needed = scratch_bytes(rows, in_features, &[(ty, out_features)], settings);
                let lines = usize::try_from(needed).expect("fits").div_ceil(64);
                let mut lines: Vec<Line> = bytemuck::zeroed_vec(lines);
                let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
                group.bench_function(BenchmarkId::new(ty.name(), threads), |b| {
                    b.iter(|| {
                        let part = Output { weight: &weight, bias: None, out: &mut out };
                        linear(&x, rows, &mut [part], scratch, settings);
                    });
                });
            }
        }
        group.finish();
    }
}

fn packing(c: &mut Criterion) {
    let mut group = c.benchmark_group("pack");
    for ty in WeightType::ALL {
        let bytes = vec![0; ty.row_bytes(1536).expect("whole blocks") * 576];
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(ty.name(), |b| b.iter(|| PackedWeight::pack(ty, 576, 1536, &bytes, 1)));
    }
    group.finish();
}

criterion_group!(benches, products, packing);
criterion_main!(benches);
