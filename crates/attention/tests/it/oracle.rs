//! Error against attention in f64 over plain arrays.

use half::{bf16, f16};
use plimsoll_attention::KvDtype;
use plimsoll_attention::reference::{Dims, attention_f32};
use proptest::prelude::*;

use crate::support::{Case, Data, best, cases};

/// Keys and values as the format stores them, queries as its products read them.
pub(crate) fn stored(case: &Case, mut data: Data) -> Data {
    let bf16 = |x: f32| bf16::from_f32(x).to_f32();
    let stored = |x: f32| if case.dtype == KvDtype::F16 { bf16(f16::from_f32(x).to_f32()) } else { bf16(x) };
    if case.dtype == KvDtype::F32 {
        return data;
    }
    data.q.iter_mut().for_each(|x| *x = bf16(*x));
    data.k.iter_mut().chain(&mut data.v).for_each(|x| *x = stored(*x));
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn results_are_near_those_of_f64(case in cases()) {
        let data = case.data();
        let got = case.run(&data, best(2));
        let data = stored(&case, data);
        let dims = Dims {
            rows: case.rows,
            kv_len: case.kv_len(),
            heads: case.heads(),
            kv_heads: case.kv_heads,
            head_dim: case.head_dim,
            v_head_dim: case.v_head_dim,
        };
        let want = attention_f32(&data.q, &data.k, &data.v, dims, case.start, &case.params(&data)).unwrap();
        // Values are at most 1 in magnitude. A probability rounded to bf16 is off by 2^-9 of itself at most, so a sum of them is, too.
        let bound = if case.dtype == KvDtype::F32 { 2e-5 } else { 1.0 / 512.0 + 2e-5 };
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            prop_assert!((g - w).abs() <= bound, "element {}: {} is not {}", i, g, w);
        }
    }
}
