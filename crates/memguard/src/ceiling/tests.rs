use super::*;

/// Writes `files` (path, text) below a fresh folder and reads the ceilings there.
fn check(files: &[(&str, &str)]) -> Vec<(String, u64, Option<u64>)> {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let ceilings = Ceilings::read_linux(root.path());
    ceilings.iter().map(|ceiling| (ceiling.source.to_string(), ceiling.bytes, ceiling.used_bytes)).collect()
}

const MEMINFO: (&str, &str) =
    ("proc/meminfo", "MemTotal:       24683656 kB\nMemFree:  1 kB\nMemAvailable:   24176032 kB\n");
const V2_MOUNT: (&str, &str) = ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");

#[test]
fn ram_is_read_from_meminfo() {
    assert_eq!(
        check(&[MEMINFO]),
        [
            ("RAM of the machine".to_owned(), 24_683_656 << 10, None),
            ("RAM available now".to_owned(), 24_176_032 << 10, None),
        ]
    );
}

#[test]
fn a_v2_limit_counts_at_every_level() {
    let found = check(&[
        V2_MOUNT,
        ("proc/self/cgroup", "0::/user/job\n"),
        ("sys/fs/cgroup/user/job/memory.max", "max\n"),
        ("sys/fs/cgroup/user/job/memory.high", "3221225472\n"),
        ("sys/fs/cgroup/user/job/memory.current", "1048576\n"),
        ("sys/fs/cgroup/user/memory.max", "2147483648\n"),
    ]);
    assert_eq!(
        found,
        [
            ("cgroup v2, /sys/fs/cgroup/user/job/memory.high".to_owned(), 3 << 30, Some(1 << 20)),
            ("cgroup v2, /sys/fs/cgroup/user/memory.max".to_owned(), 2 << 30, None),
        ]
    );
}

#[test]
fn a_v1_limit_is_found_and_its_huge_number_is_none() {
    let mount = ("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
    let groups = ("proc/self/cgroup", "5:devices:/x\n4:memory:/x/y\n0::/\n");
    let found = check(&[
        mount,
        groups,
        ("sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "1073741824\n"),
        ("sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "4096\n"),
        ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
    ]);
    assert_eq!(found, [("cgroup v1, /sys/fs/cgroup/memory/x/y/memory.limit_in_bytes".to_owned(), 1 << 30, Some(4096))]);
}

#[test]
fn a_v1_limit_above_the_containers_root_is_seen_through_the_statistics() {
    let found = check(&[
        ("proc/self/mountinfo", "35 31 0:32 /docker/1 /cg/memory rw - cgroup cgroup rw,memory\n"),
        ("proc/self/cgroup", "4:memory:/docker/1\n"),
        ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("cg/memory/memory.stat", "cache 0\nhierarchical_memory_limit 536870912\nhierarchical_memsw_limit 7\n"),
        ("cg/memory/memory.usage_in_bytes", "4096\n"),
    ]);
    assert_eq!(found, [("cgroup v1, /cg/memory/memory.stat".to_owned(), 512 << 20, None)]);
}

#[test]
fn nothing_readable_means_nothing_known() {
    assert_eq!(check(&[]), []);
    assert_eq!(check(&[V2_MOUNT, ("proc/self/cgroup", "0::/\n"), ("proc/meminfo", "MemTotal: lots\n")]), []);
    assert_eq!(Ceilings::default().lowest(), None);
}

#[test]
fn a_momentary_reading_is_never_the_fixed_ceiling() {
    let ceiling = |source, bytes| Ceiling { source, bytes, used_bytes: None };
    let ceilings = Ceilings {
        found: vec![
            ceiling(CeilingSource::Ram, 100),
            ceiling(CeilingSource::RamAvailable, 10),
            ceiling(CeilingSource::CgroupV2 { file: "/g/memory.max".into() }, 50),
        ],
    };
    assert_eq!(ceilings.lowest().unwrap().bytes, 10);
    assert_eq!(ceilings.lowest_fixed().unwrap().bytes, 50);
}

#[test]
fn limits_of_a_gpu_bind_no_run_on_the_cpu() {
    let gib = |count: u64| count << 30;
    let ceiling = |source, bytes| Ceiling { source, bytes, used_bytes: None };
    let found = vec![
        ceiling(CeilingSource::Ram, gib(36)),
        ceiling(CeilingSource::RamAvailable, gib(30)),
        ceiling(CeilingSource::WiredLimit, gib(8)),
        ceiling(CeilingSource::WorkingSet { device: "Apple M4 Max".to_owned() }, gib(27)),
        ceiling(CeilingSource::CgroupV1 { file: "/g/memory.limit_in_bytes".into() }, gib(34)),
    ];
    let all = Ceilings { found };
    let of = |runs_on| all.clone().binding(runs_on);
    assert_eq!(of(RunsOn::Gpu), all);
    assert_eq!(of(RunsOn::Gpu).budget(Policy::Balanced).unwrap().bytes, gib(8));
    let sources: Vec<_> = of(RunsOn::Cpu).iter().map(|ceiling| ceiling.source.to_string()).collect();
    assert_eq!(sources, ["RAM of the machine", "RAM available now", "cgroup v1, /g/memory.limit_in_bytes"]);
    assert_eq!(of(RunsOn::Cpu).lowest_fixed().unwrap().bytes, gib(34));
    // 36 GiB less the 6 GiB of the policy.
    assert_eq!(of(RunsOn::Cpu).budget(Policy::Balanced).unwrap().bytes, gib(30));
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
#[test]
fn this_machine_has_ram() {
    let ceilings = Ceilings::detect();
    let ram = ceilings.iter().find(|ceiling| ceiling.source == CeilingSource::Ram).unwrap();
    assert!(ram.bytes > 64 << 20);
    assert!(ceilings.lowest_fixed().unwrap().bytes <= ram.bytes);
}
