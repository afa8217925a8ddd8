//! The route and its workspace follow the shape.

use plimsoll_attention::{AttnShape, Error, Isa, KvDtype, KvValues, Route, RouteKind, Settings};

use crate::support::{best, plain};

const SHAPE: AttnShape = AttnShape {
    rows: 512,
    kv_len: 4096,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    v_head_dim: 64,
    kv_dtype: KvDtype::Bf16,
    kv_values: KvValues::Own,
    window: None,
};

#[test]
fn workspace_does_not_depend_on_kv_len() {
    for threads in 1..=4 {
        let bytes = |kv_len| {
            let shape = AttnShape { kv_len, ..SHAPE };
            Route::for_shape(&shape, &best(threads)).workspace_bytes(&shape)
        };
        assert_eq!(bytes(512), bytes(1 << 20), "{threads} threads");
    }
}

#[test]
fn workspace_is_bounded_in_rows_and_grows_with_them_up_to_the_bound() {
    for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let bytes = |rows| {
            let shape = AttnShape { rows, kv_dtype, ..SHAPE };
            Route::for_shape(&shape, &best(2)).workspace_bytes(&shape)
        };
        let all: Vec<u64> = (0..400).map(bytes).collect();
        assert!(all.is_sorted(), "{kv_dtype:?}: {all:?}");
        assert_eq!(all[399], bytes(1 << 20), "{kv_dtype:?}");
        assert!(bytes(1 << 20) <= 2 * 192 * 1024, "{kv_dtype:?}: {}", bytes(1 << 20));
    }
}

#[test]
fn workspace_of_the_widest_heads_is_bounded() {
    // One latent KV head for 128 query heads.
    let shape = AttnShape { heads: 128, kv_heads: 1, head_dim: 576, v_head_dim: 512, ..SHAPE };
    let bytes = Route::for_shape(&shape, &best(1)).workspace_bytes(&shape);
    assert!(bytes < 512 << 10, "{bytes}");
}

#[test]
fn route_is_a_function_of_shape_and_settings() {
    let route = Route::for_shape(&SHAPE, &best(2));
    for kv_len in [1, 512, 1 << 20] {
        let again = Route::for_shape(&AttnShape { kv_len, ..SHAPE }, &best(2));
        assert_eq!(again.name(), route.name());
        assert_eq!(again.kind(), route.kind());
    }
    assert_eq!(Route::for_shape(&SHAPE, &best(2)), route);
}

#[test]
fn settings_force_the_route() {
    let forced = Route::for_shape(&SHAPE, &plain());
    assert_eq!((forced.kind(), forced.name()), (RouteKind::Reference, "scalar-reference"));
    assert_eq!(forced.workspace_bytes(&SHAPE), 0);
    let free = Route::for_shape(&SHAPE, &Settings { route: None, isa: Isa::Scalar, threads: 1 });
    assert_eq!((free.kind(), free.name()), (RouteKind::Tiled, "scalar-bf16-tiled"));
    let one_row = AttnShape { rows: 1, ..SHAPE };
    assert_eq!(
        Route::for_shape(&one_row, &Settings { route: None, isa: Isa::Avx2, threads: 1 }).name(),
        "avx2-bf16-direct"
    );
}

#[test]
fn an_instruction_set_that_is_missing_is_an_error_and_not_another_one() {
    let shape = AttnShape { rows: 0, kv_len: 0, ..SHAPE };
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
        let route = Route::for_shape(&shape, &Settings { route: None, isa, threads: 1 });
        assert!(route.name().starts_with(&format!("{isa}-bf16-")), "{}", route.name());
        assert_eq!(isa.require().is_ok(), Isa::available().any(|available| available == isa));
        if let Err(error) = isa.require() {
            assert_eq!(error, Error::IsaUnavailable { isa, best: Isa::detect() });
        }
    }
    assert_eq!("sse9".parse::<Isa>(), Err(Error::UnknownIsa));
}
