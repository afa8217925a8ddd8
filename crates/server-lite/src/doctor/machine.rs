//! The processor: its name, its threads, its instruction sets, and why one is not used.

use plimsoll_linear::Isa;
use serde::Serialize;
use std::{fs, num::NonZeroUsize, thread};

/// An instruction set that kernels are written for.
#[derive(Debug, Serialize)]
pub(super) struct InstructionSet {
    pub(super) name: &'static str,
    pub(super) available: bool,
    /// Whether products run on it.
    pub(super) chosen: bool,
    /// Why it is not available, or not chosen; empty for the one that is.
    pub(super) why: String,
}

/// Every instruction set, the fastest first; `chosen` is the one that a run would take.
pub(super) fn instruction_sets(chosen: Isa) -> Vec<InstructionSet> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok();
    // Arm's kernels call them features.
    let flags = cpuinfo.as_deref().and_then(|text| field(text, "flags").or_else(|| field(text, "Features")));
    Isa::ALL
        .into_iter()
        .map(|isa| {
            let available = isa.is_available();
            let why = match (isa == chosen, available) {
                (true, _) => String::new(),
                (false, true) => format!("{chosen} is taken"),
                (false, false) => reason(isa, std::env::consts::ARCH, flags),
            };
            InstructionSet { name: isa.name(), available, chosen: isa == chosen, why }
        })
        .collect()
}

/// Why an instruction set cannot be used; `flags` are the processor's, as Linux lists them.
fn reason(isa: Isa, architecture: &str, flags: Option<&str>) -> String {
    let (home, home_name) = if isa == Isa::Neon { ("aarch64", "AArch64") } else { ("x86_64", "x86-64") };
    if architecture != home {
        return format!("for {home_name} alone, this is {architecture}");
    }
    let needed: &[&str] = match isa {
        Isa::Amx => &["amx_tile", "amx_bf16", "avx512_bf16"],
        Isa::Avx512 => &["avx512f", "avx512bw", "avx512vl"],
        Isa::Avx2 => &["avx2", "fma", "f16c"],
        Isa::Neon => &["asimd"],
        _ => &[],
    };
    let Some(flags) = flags else { return "the processor or the system does not offer it".to_owned() };
    let missing: Vec<&str> =
        needed.iter().copied().filter(|needed| !flags.split_whitespace().any(|flag| flag == *needed)).collect();
    match missing.is_empty() {
        false => format!("the processor has no {}", missing.join(", ")),
        true => "the processor has it, the kernel does not let this process use it".to_owned(),
    }
}

/// The processor's name.
pub(super) fn cpu_model() -> Option<String> {
    if cfg!(target_os = "macos") {
        let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "machdep.cpu.brand_string"]).output();
        return output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).map(|name| name.trim().to_owned());
    }
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    // Arm's kernels name a part instead.
    field(&text, "model name").or_else(|| field(&text, "Model")).or_else(|| field(&text, "CPU part")).map(str::to_owned)
}

/// Processors that this process may use: affinity and control groups counted.
pub(super) fn available_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// The first value of `name` in the text of `/proc/cpuinfo`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = "fpu avx2 fma f16c avx512f avx512bw avx512vl avx512_bf16";

    #[test]
    fn what_is_missing_is_named_and_what_is_refused_too() {
        assert_eq!(reason(Isa::Amx, "x86_64", Some(FLAGS)), "the processor has no amx_tile, amx_bf16");
        let all = format!("{FLAGS} amx_tile amx_bf16");
        assert!(reason(Isa::Amx, "x86_64", Some(&all)).contains("the kernel does not let"));
        assert_eq!(reason(Isa::Avx512, "x86_64", Some("avx2 avx512f")), "the processor has no avx512bw, avx512vl");
        assert_eq!(reason(Isa::Avx2, "aarch64", None), "for x86-64 alone, this is aarch64");
        assert_eq!(reason(Isa::Neon, "x86_64", Some(FLAGS)), "for AArch64 alone, this is x86_64");
        assert_eq!(reason(Isa::Neon, "aarch64", Some("fp")), "the processor has no asimd");
        assert!(reason(Isa::Avx2, "x86_64", None).contains("does not offer"));
    }

    #[test]
    fn one_set_is_chosen_and_every_other_says_why_not() {
        let sets = instruction_sets(Isa::Scalar);
        assert_eq!(sets.iter().filter(|set| set.chosen).count(), 1);
        for set in &sets {
            assert_eq!(set.chosen, set.why.is_empty(), "{set:?}");
        }
    }

    #[test]
    fn fields_of_cpuinfo_are_found_by_their_whole_name() {
        let text = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU: 3 GHz\nflags\t\t: a b\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: 3 GHz"));
        assert_eq!(field(text, "flags"), Some("a b"));
        assert_eq!(field(text, "Model"), None);
    }
}
