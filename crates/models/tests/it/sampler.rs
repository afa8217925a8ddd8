//! The sampler from outside: the same seed gives the same tokens.

use plimsoll_models::sampler::{Sampler, SamplerError, SamplerParams, greedy};

fn draw(params: SamplerParams, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params).expect("valid parameters");
    (0..count).map(|_| sampler.sample(logits).expect("valid logits")).collect()
}

/// Share of each token among many draws.
fn shares(params: SamplerParams, logits: &[f32]) -> Vec<f64> {
    const DRAWS: usize = 40_000;
    let mut counts = vec![0u32; logits.len()];
    for id in draw(params, logits, DRAWS) {
        counts[id as usize] += 1;
    }
    counts.into_iter().map(|count| f64::from(count) / DRAWS as f64).collect()
}

fn check_shares(params: SamplerParams, logits: &[f32], want: &[f64]) {
    let got = shares(params, logits);
    for (id, (got, want)) in got.iter().zip(want).enumerate() {
        // Five standard deviations of a share among 40,000 draws; an excluded token is never drawn.
        let bound = if *want == 0.0 { 0.0 } else { 5.0 * (want * (1.0 - want) / 40_000.0).sqrt() };
        assert!((got - want).abs() <= bound, "token {id}: share {got}, want {want}, {params:?}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_the_most_likely() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, -1.0]), Ok(1));
    assert_eq!(greedy(&[f32::NEG_INFINITY, -5.0]), Ok(1));
    assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
    assert_eq!(greedy(&[0.0, f32::INFINITY, f32::INFINITY]), Ok(1));
    assert_eq!(draw(SamplerParams::default(), &[0.0, 7.0, 7.0], 3), [1, 1, 1]);
}

#[test]
fn logits_without_a_choice_are_refused() {
    let params = SamplerParams { temperature: 1.0, ..SamplerParams::default() };
    for params in [params, SamplerParams::default()] {
        let mut sampler = Sampler::new(params).unwrap();
        assert_eq!(sampler.sample(&[0.0, f32::NAN]), Err(SamplerError::NanLogit { id: 1, vocab_size: 2 }));
        assert_eq!(sampler.sample(&[]), Err(SamplerError::NoCandidate { vocab_size: 0 }));
        let masked = [f32::NEG_INFINITY; 3];
        assert_eq!(sampler.sample(&masked), Err(SamplerError::NoCandidate { vocab_size: 3 }));
    }
}

#[test]
fn parameters_out_of_range_are_refused_with_their_value() {
    let check = |params, want: &str| assert_eq!(Sampler::new(params).unwrap_err().to_string(), want);
    let base = SamplerParams::default();
    check(SamplerParams { temperature: -0.5, ..base }, "temperature is -0.5, must be a finite number of at least 0");
    check(SamplerParams { temperature: f32::NAN, ..base }, "temperature is NaN, must be a finite number of at least 0");
    check(
        SamplerParams { temperature: f32::INFINITY, ..base },
        "temperature is inf, must be a finite number of at least 0",
    );
    check(SamplerParams { top_k: Some(0), ..base }, "top_k is 0, must be at least 1");
    check(SamplerParams { top_p: 0.0, ..base }, "top_p is 0, must be above 0 and at most 1");
    check(SamplerParams { top_p: 1.5, ..base }, "top_p is 1.5, must be above 0 and at most 1");
    check(SamplerParams { top_p: f32::NAN, ..base }, "top_p is NaN, must be above 0 and at most 1");
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [0.5f32.ln(), 0.125f32.ln(), f32::NEG_INFINITY, 0.25f32.ln(), 0.125f32.ln()];
    let base = SamplerParams { temperature: 1.0, seed: 11, ..SamplerParams::default() };
    check_shares(base, &logits, &[0.5, 0.125, 0.0, 0.25, 0.125]);
    // Squared and normalized.
    check_shares(
        SamplerParams { temperature: 0.5, ..base },
        &logits,
        &[16.0 / 22.0, 1.0 / 22.0, 0.0, 4.0 / 22.0, 1.0 / 22.0],
    );
    // Of the two equal tokens the lower id is in.
    check_shares(SamplerParams { top_k: Some(3), ..base }, &logits, &[4.0 / 7.0, 1.0 / 7.0, 0.0, 2.0 / 7.0, 0.0]);
    check_shares(SamplerParams { top_p: 0.6, ..base }, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0, 0.0]);
    // 0.4 of what the two leave, 2/3 and 1/3, is the first alone.
    check_shares(SamplerParams { top_k: Some(2), top_p: 0.4, ..base }, &logits, &[1.0, 0.0, 0.0, 0.0, 0.0]);
    check_shares(SamplerParams { top_k: Some(100), ..base }, &logits, &[0.5, 0.125, 0.0, 0.25, 0.125]);
    check_shares(base, &[f32::INFINITY, 1.0, f32::INFINITY], &[0.5, 0.0, 0.5]);
}

#[test]
fn one_seed_gives_one_sequence_for_ever() {
    let logits: Vec<f32> = (0..1000u32).map(|i| ((i * 7919) % 1000) as f32 / 250.0).collect();
    let params = SamplerParams { temperature: 0.8, top_p: 0.95, seed: 42, ..SamplerParams::default() };
    let first = draw(params, &logits, 6);
    assert_eq!(first, draw(params, &logits, 6));
    assert_ne!(first, draw(SamplerParams { seed: 43, ..params }, &logits, 6));
    // By the same definition in Python; a change here is a change of every user's results.
    assert_eq!(first, [361, 593, 902, 359, 568, 103]);
}

#[test]
fn a_large_top_k_changes_nothing() {
    let logits: Vec<f32> = (0..300).map(|i| (i % 50) as f32 / 10.0).collect();
    let params = SamplerParams { temperature: 1.3, seed: 5, ..SamplerParams::default() };
    assert_eq!(draw(params, &logits, 50), draw(SamplerParams { top_k: Some(300), ..params }, &logits, 50));
}

#[test]
fn extreme_temperatures_stay_defined() {
    let params = SamplerParams { temperature: f32::from_bits(1), ..SamplerParams::default() };
    assert_eq!(draw(params, &[1.0, 2.0, 2.0 - 1e-6], 20), [1; 20]);
    let shares = shares(SamplerParams { temperature: f32::MAX, ..params }, &[0.0, 100.0]);
    assert!((shares[0] - 0.5).abs() < 0.02, "{shares:?}");
}
