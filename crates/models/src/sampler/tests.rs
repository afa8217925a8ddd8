use super::*;

#[test]
fn exp_is_within_two_ulp_of_the_system_and_one_at_zero() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f64::NEG_INFINITY), 0.0);
    for i in 0..70_000 {
        let x = f64::from(i) * -0.01;
        let (got, want) = (exp(x), x.exp());
        assert!((got - want).abs() <= want * f64::EPSILON * 2.0, "exp({x}) is {got}, want {want}");
    }
}

#[test]
fn several_at_a_time_have_the_bits_of_one() {
    let logits: Vec<f32> = (0..1003).map(|i| (i * i % 997) as f32 * -0.9).chain([f32::NEG_INFINITY]).collect();
    let scale = Scale { best: 0.0, temperature: 0.7 };
    let want: f64 = logits.iter().map(|&logit| scale.weight(logit)).sum();
    assert_eq!(scale.total(&logits).to_bits(), want.to_bits());
}

#[test]
fn random_sequence_is_the_published_one() {
    // First outputs for seed 1234567, as in the reference implementation's test.
    let mut random = SplitMix64::new(1_234_567);
    assert_eq!(
        [random.next(), random.next(), random.next()],
        [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
    );
}

#[test]
fn head_of_the_order_is_sorted_in_steps_as_by_one_sort() {
    let logits: Vec<f32> = {
        let mut random = SplitMix64::new(3);
        // Many ties: only 97 values.
        (0..5000).map(|_| (random.next() % 97) as f32).collect()
    };
    let mut lazy: Vec<Candidate> = (0..).zip(&logits).map(|(id, &logit)| Candidate { logit, id }).collect();
    for order in [Order::Likely, Order::Typical { expected: -0.4 }] {
        let scale = Scale { best: 96.0, temperature: 50.0 };
        let mut kept = Kept { tokens: 5000, total: 0.0, sorted: 0, order, scale };
        let mut whole = lazy.clone();
        whole.sort_by(|a, b| kept.compare(a, b));
        for wanted in [1, 2, 64, 65, 1000, 5000] {
            kept.sort(&mut lazy, wanted);
            assert!(kept.sorted >= wanted);
            let ids = |candidates: &[Candidate]| candidates[..wanted].iter().map(|c| c.id).collect::<Vec<_>>();
            assert_eq!(ids(&lazy), ids(&whole), "first {wanted}, {order:?}");
        }
    }
}

#[test]
fn drawing_allocates_once() {
    let params = SamplerParams { temperature: 1.0, top_p: 0.9, presence_penalty: 0.5, ..SamplerParams::default() };
    let mut sampler = Sampler::new(params).unwrap();
    let logits: Vec<f32> = (0..1000).map(|i| (i % 37) as f32).collect();
    sampler.sample(&logits).unwrap();
    let buffers = |sampler: &Sampler| {
        let Sampler { candidates, adjusted, .. } = sampler;
        (candidates.as_ptr(), candidates.capacity(), adjusted.as_ptr(), adjusted.capacity())
    };
    let before = buffers(&sampler);
    for _ in 0..100 {
        sampler.sample(&logits).unwrap();
    }
    assert_eq!(before, buffers(&sampler));
}
