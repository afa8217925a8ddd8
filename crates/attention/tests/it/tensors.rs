//! The candle API: the tiled route has the bits of the kernels, the portable route is near f64.

use candle_core::{DType, Device, Tensor};
use plimsoll_attention::reference::{Dims, attention_f32};
use plimsoll_attention::{CausalAttention, Isa, KvDtype, TensorRoute};
use proptest::prelude::*;

use crate::oracle::stored;
use crate::support::{Case, Data, assert_same_bits, best, cases};

fn attention(case: &Case, data: &Data, route: TensorRoute, threads: usize) -> CausalAttention {
    CausalAttention {
        window: case.window,
        softcap: case.softcap,
        sinks: case.sinks.then(|| data.sinks.clone()),
        route: Some(route),
        ..CausalAttention::new(case.params(data).scale, Isa::detect(), threads)
    }
}

/// `[tokens, heads, dim]` as a view `[1, heads, tokens, dim]`.
fn tensor(values: &[f32], heads: usize, dim: usize, dtype: DType) -> Tensor {
    let tensor = Tensor::from_slice(values, (values.len() / heads / dim, heads, dim), &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap().transpose(0, 1).unwrap().unsqueeze(0).unwrap()
}

/// Queries, keys and values of a case.
fn tensors(case: &Case, data: &Data) -> [Tensor; 3] {
    let dtype = match case.dtype {
        KvDtype::F32 => DType::F32,
        KvDtype::F16 => DType::F16,
        KvDtype::Bf16 => DType::BF16,
    };
    [
        tensor(&data.q, case.heads(), case.head_dim, DType::F32),
        tensor(&data.k, case.kv_heads, case.head_dim, dtype),
        tensor(&data.v, case.kv_heads, case.v_head_dim, dtype),
    ]
}

/// The result of a call, as `[rows, heads, v_head_dim]`.
fn forward(attention: &CausalAttention, [q, k, v]: &[Tensor; 3], start: usize) -> Vec<f32> {
    let out = attention.forward(q, k, v, start).unwrap();
    out.squeeze(0).unwrap().transpose(0, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn oracle(case: &Case, data: &Data) -> Vec<f32> {
    let dims = Dims {
        rows: case.rows,
        kv_len: case.kv_len(),
        heads: case.heads(),
        kv_heads: case.kv_heads,
        head_dim: case.head_dim,
        v_head_dim: case.v_head_dim,
    };
    attention_f32(&data.q, &data.k, &data.v, dims, case.start, &case.params(data)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_tiled_route_gives_the_bits_of_the_kernels(case in cases(), threads in 1..4usize) {
        let data = case.data();
        let want = case.run(&data, best(1));
        let tensors = tensors(&case, &data);
        let attention = attention(&case, &data, TensorRoute::Tiled, threads);
        assert_same_bits(&forward(&attention, &tensors, case.start), &want, "views");
        let copies = tensors.map(|tensor| tensor.contiguous().unwrap());
        assert_same_bits(&forward(&attention, &copies, case.start), &want, "contiguous tensors");
    }

    #[test]
    fn the_portable_route_is_near_f64(case in cases()) {
        let data = case.data();
        let attention = attention(&case, &data, TensorRoute::Portable, 1);
        let got = forward(&attention, &tensors(&case, &data), case.start);
        let want = oracle(&case, &stored(&case, data));
        // As for the kernels: a probability rounded to bf16 is off by 2^-9 of itself at most, and values are at most 1.
        let bound = if case.dtype == KvDtype::F32 { 2e-5 } else { 1.0 / 512.0 + 2e-5 };
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            prop_assert!((g - w).abs() <= bound, "element {}: {} is not {}", i, g, w);
        }
    }
}

fn case() -> Case {
    Case {
        dtype: KvDtype::Bf16,
        kv_heads: 2,
        group_size: 3,
        head_dim: 40,
        v_head_dim: 24,
        start: 170,
        rows: 150,
        window: Some(90),
        softcap: Some(8.0),
        sinks: true,
        seed: 3,
    }
}

#[test]
fn batch_entries_and_views_of_longer_caches_change_no_bit() {
    let (one, other) = (case(), Case { seed: 4, ..case() });
    let (one_data, other_data) = (one.data(), Data { sinks: one.data().sinks, ..other.data() });
    let (of_one, of_other) = (tensors(&one, &one_data), tensors(&other, &other_data));
    for (route, bound) in [(TensorRoute::Tiled, 0.0), (TensorRoute::Portable, 1e-5)] {
        let attention = attention(&one, &one_data, route, 2);
        let [want_one, want_other] = [&of_one, &of_other].map(|tensors| forward(&attention, tensors, one.start));
        let [q, k, v] = std::array::from_fn(|i| Tensor::cat(&[&of_one[i], &of_other[i]], 0).unwrap());
        // Room for more tokens after the last: NaN there must not be read.
        let room = |x: &Tensor| {
            let (batch, heads, _, dim) = x.dims4().unwrap();
            let nan = Tensor::full(f32::NAN, (batch, heads, 77, dim), &Device::Cpu).unwrap();
            let cache = Tensor::cat(&[x, &nan.to_dtype(x.dtype()).unwrap()], 2).unwrap();
            cache.narrow(2, 0, one.kv_len()).unwrap()
        };
        let out = attention.forward(&q, &room(&k), &room(&v), one.start).unwrap();
        for (b, want) in [want_one, want_other].iter().enumerate() {
            let got = out.get(b).unwrap().transpose(0, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
            assert!(worst <= bound && got.len() == want.len(), "{route:?}, entry {b}: {worst}");
        }
    }
}

#[test]
fn half_queries_give_a_half_result() {
    let case = case();
    let data = case.data();
    let [q, k, v] = tensors(&case, &data);
    for route in [TensorRoute::Tiled, TensorRoute::Portable] {
        let attention = attention(&case, &data, route, 1);
        let want = attention.forward(&q.to_dtype(DType::BF16).unwrap(), &k, &v, case.start).unwrap();
        assert_eq!(want.dtype(), DType::BF16);
        let full = attention.forward(&q, &k, &v, case.start).unwrap();
        let difference = (want.to_dtype(DType::F32).unwrap() - full).unwrap().abs().unwrap();
        let worst = difference.flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
        assert!(worst < 0.01, "{route:?}: {worst}");
    }
}

#[test]
fn no_rows_give_no_rows() {
    let case = case();
    let data = case.data();
    let [q, k, v] = tensors(&case, &data);
    for route in [TensorRoute::Tiled, TensorRoute::Portable] {
        let out = attention(&case, &data, route, 1).forward(&q.narrow(2, 0, 0).unwrap(), &k, &v, 0).unwrap();
        assert_eq!(out.dims(), [1, 6, 0, 24]);
    }
}

#[test]
fn wrong_tensors_are_refused_with_numbers() {
    let case = case();
    let data = case.data();
    let [q, k, v] = tensors(&case, &data);
    let attention = attention(&case, &data, TensorRoute::Tiled, 1);
    let refusal =
        |q: &Tensor, k: &Tensor, v: &Tensor, start| attention.forward(q, k, v, start).unwrap_err().to_string();
    for (what, refusal) in [
        ("rows 171..171+150 reach past the 320 keys", refusal(&q, &k, &v, 171)),
        ("1 heads in v, 2 expected", refusal(&q, &k, &v.narrow(1, 0, 1).unwrap(), 170)),
        ("319 rows in v, 320 expected", refusal(&q, &k, &v.narrow(2, 0, 319).unwrap(), 170)),
        ("39 elements in a row of k, 40 expected", refusal(&q, &k.narrow(3, 0, 39).unwrap(), &v, 170)),
        ("values in F32", refusal(&q, &k, &v.to_dtype(DType::F32).unwrap(), 170)),
        ("5 query heads cannot be shared out over 2", refusal(&q.narrow(1, 0, 5).unwrap(), &k, &v, 170)),
        ("sinks has 6 elements", refusal(&q.narrow(1, 0, 4).unwrap(), &k, &v, 170)),
        ("queries in U8", refusal(&q.to_dtype(DType::U8).unwrap(), &k, &v, 170)),
    ] {
        assert!(refusal.contains(what), "{refusal} does not say {what}");
    }
}
