//! The eager API gives the bits of the slice API.

use std::sync::Arc;

use candle_core::{DType, Device, Module, Tensor};
use plimsoll_linear::{Isa, PackedLinear, Settings, WeightType};

use crate::cases::{Random, assert_same_bits, packed, product, stored};

const SETTINGS: Settings = Settings { isa: Isa::Scalar, threads: 2 };

#[test]
fn a_layer_over_a_view_equals_the_slice_api() {
    let (n, k, mut random) = (24, 64, Random::new(5));
    let weight = Arc::new(packed(WeightType::Q4_1, n, k, &stored(WeightType::Q4_1, n, k, &mut random)));
    let bias = random.vector(n);
    let layer = PackedLinear::new(weight.clone(), Some(&bias), SETTINGS).unwrap();
    let x = Tensor::from_vec(random.vector(2 * 7 * k), (2, 7, k), &Device::Cpu).unwrap();
    let view = x.narrow(1, 2, 3).unwrap();
    let y = layer.forward(&view).unwrap();
    assert_eq!(y.dims(), [2, 3, n]);
    let rows = view.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let want = product(&rows, 6, &[(&weight, Some(&bias))], SETTINGS).remove(0);
    assert_same_bits(&y.flatten_all().unwrap().to_vec1::<f32>().unwrap(), &want, &"view");
}

#[test]
fn a_bf16_layer_answers_in_the_dtype_of_its_input() {
    let weight = Tensor::new(&[[1f32, 2.0], [0.5, -1.0], [0.0, 4.0]], &Device::Cpu).unwrap();
    let layer = PackedLinear::from_tensors(&weight.to_dtype(DType::BF16).unwrap(), None, SETTINGS).unwrap();
    assert_eq!(layer.weight().weight_type(), WeightType::Bf16);
    let x = Tensor::new(&[[1f32, 3.0]], &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
    let y = layer.forward(&x).unwrap();
    assert_eq!(y.dtype(), DType::F16);
    assert_eq!(y.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap(), [[7.0, -2.5, 12.0]]);
}

#[test]
fn wrong_shapes_are_errors() {
    let weight = Tensor::zeros((3, 2), DType::F32, &Device::Cpu).unwrap();
    let layer = PackedLinear::from_tensors(&weight, None, SETTINGS).unwrap();
    let x = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).unwrap();
    let error = layer.forward(&x).unwrap_err().to_string();
    assert!(error.starts_with("x of shape [4, 3] for 2 input features"), "{error}");
    assert!(PackedLinear::new(layer.weight().clone(), Some(&[0.0]), SETTINGS).is_err());
}
