//! The footprint taken apart by what the memory is: heap, maps, stacks, device memory.

use std::fs;
use std::path::Path;

use super::field_kib;

/// Bytes of this process in memory or swapped out, by what they are. All but `file_cache_bytes` are in the footprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Regions {
    /// The allocator's own growing region, and on macOS everything that `malloc` mapped.
    pub heap_bytes: u64,
    /// Anonymous maps: large allocations, arenas, thread stacks where the system does not tell them apart (Linux).
    pub anonymous_bytes: u64,
    /// Stacks that are known as such.
    pub stack_bytes: u64,
    /// Private copies of file pages, which only this process has.
    pub file_copy_bytes: u64,
    /// Memory shared with a GPU (macOS); always 0 on Linux, where drivers count for themselves.
    pub device_bytes: u64,
    /// Everything else that is charged.
    pub other_bytes: u64,
    /// File pages that the system may drop at any time: resident, and not in the footprint.
    pub file_cache_bytes: u64,
}

/// What one mapping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Category {
    Heap,
    Anonymous,
    Stack,
    File,
    #[cfg(any(target_os = "macos", test))]
    Device,
    Other,
}

impl Regions {
    /// The regions of this process now; `None` where the platform does not tell.
    #[must_use]
    pub fn read() -> Option<Self> {
        #[cfg(target_os = "linux")]
        return Self::read_linux(Path::new("/proc/self"));
        #[cfg(target_os = "macos")]
        return super::macos::regions();
        #[cfg(not(any(target_os = "linux", target_os = "macos")))]
        None
    }

    /// The regions that `process_dir/smaps` lists; `None` if there is no such file.
    #[must_use]
    pub fn read_linux(process_dir: &Path) -> Option<Self> {
        fs::read_to_string(process_dir.join("smaps")).ok().map(|text| Self::from_smaps(&text))
    }

    /// Reads the text of an `smaps` file.
    #[must_use]
    pub fn from_smaps(text: &str) -> Self {
        let mut this = Self::default();
        let mut category = Category::Other;
        let mut rss_bytes = 0;
        for line in text.lines() {
            if let Some(name) = mapping_name(line) {
                category = Category::of_linux(name);
            } else if let Some(bytes) = field_kib(line, "Rss") {
                rss_bytes = bytes;
            } else if let Some(bytes) = field_kib(line, "Anonymous") {
                this.add(category, bytes);
                this.file_cache_bytes = this.file_cache_bytes.saturating_add(rss_bytes.saturating_sub(bytes));
            } else if let Some(bytes) = field_kib(line, "Swap") {
                this.add(category, bytes);
            }
        }
        this
    }

    /// The sum of what is charged to the process.
    #[must_use]
    pub fn footprint_bytes(&self) -> u64 {
        self.charged().into_iter().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// What is charged to the process, by name, in the order of the fields.
    #[must_use]
    pub fn charged(&self) -> [(&'static str, u64); 6] {
        [
            ("heap", self.heap_bytes),
            ("anonymous maps", self.anonymous_bytes),
            ("stacks", self.stack_bytes),
            ("private file pages", self.file_copy_bytes),
            ("device memory", self.device_bytes),
            ("other", self.other_bytes),
        ]
    }

    fn add(&mut self, category: Category, bytes: u64) {
        let field = match category {
            Category::Heap => &mut self.heap_bytes,
            Category::Anonymous => &mut self.anonymous_bytes,
            Category::Stack => &mut self.stack_bytes,
            Category::File => &mut self.file_copy_bytes,
            #[cfg(any(target_os = "macos", test))]
            Category::Device => &mut self.device_bytes,
            Category::Other => &mut self.other_bytes,
        };
        *field = field.saturating_add(bytes);
    }

    /// Adds one region of a macOS task: `tag` as `malloc` and the frameworks set it, pages as the kernel counts them.
    #[cfg(any(target_os = "macos", test))]
    pub(super) fn add_macos(&mut self, region: &MacRegion, page_bytes: u64) {
        let bytes = |pages: u32| u64::from(pages).saturating_mul(page_bytes);
        if region.is_file {
            self.add(Category::File, bytes(region.dirtied_pages.saturating_add(region.swapped_pages)));
            let clean = bytes(region.resident_pages.saturating_sub(region.dirtied_pages));
            self.file_cache_bytes = self.file_cache_bytes.saturating_add(clean);
            return;
        }
        // Reusable pages were given back by the allocator; the system takes them when it likes, and does not charge them.
        let resident = region.resident_pages.saturating_sub(region.reusable_pages);
        self.add(Category::of_macos(region.tag), bytes(resident.saturating_add(region.swapped_pages)));
    }
}

/// One region of a macOS task.
#[cfg(any(target_os = "macos", test))]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MacRegion {
    pub(super) tag: u32,
    /// Whether a file backs it.
    pub(super) is_file: bool,
    pub(super) resident_pages: u32,
    pub(super) dirtied_pages: u32,
    pub(super) swapped_pages: u32,
    pub(super) reusable_pages: u32,
}

impl Category {
    /// By the name that ends a mapping's line in `smaps`.
    fn of_linux(name: &str) -> Self {
        match name {
            "" => Self::Anonymous,
            "[heap]" => Self::Heap,
            name if name.starts_with("[stack") => Self::Stack,
            // Named by its owner: `prctl(PR_SET_VMA_ANON_NAME)`.
            name if name.starts_with("[anon") => Self::Anonymous,
            name if name.starts_with('/') => Self::File,
            _ => Self::Other,
        }
    }

    /// By the tag of a region: `mach/vm_statistics.h`.
    #[cfg(any(target_os = "macos", test))]
    fn of_macos(tag: u32) -> Self {
        match tag {
            // The kinds of `malloc`.
            1..=13 => Self::Heap,
            30 => Self::Stack,
            // IOKit, IOSurface, IOAccelerator: buffers of the GPU.
            21 | 88 | 100 => Self::Device,
            0 => Self::Anonymous,
            _ => Self::Other,
        }
    }
}

/// The name of a mapping if `line` begins one: `start-end perms offset device inode name`.
fn mapping_name(line: &str) -> Option<&str> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex(start) || !is_hex(end) {
        return None;
    }
    // Four fields of one word each, then the name, which may hold spaces.
    let name = (0..4).try_fold(rest, |rest, _| rest.split_once(' ').map(|(_, rest)| rest));
    Some(name.unwrap_or("").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "55d0a0000000-55d0a0100000 r-xp 00000000 08:01 123                        /usr/bin/plim soll\n\
        Size:               1024 kB\nRss:                 300 kB\nAnonymous:            20 kB\nSwap:                  4 kB\n\
        55d0a1000000-55d0a1200000 rw-p 00000000 00:00 0                          [heap]\n\
        Rss:                 500 kB\nAnonymous:           500 kB\nSwap:                  1 kB\n\
        7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
        Rss:                4000 kB\nAnonymous:          4000 kB\nSwap:                  0 kB\n\
        7f0001000000-7f0001400000 rw-p 00000000 00:00 0                          [anon:arena]\n\
        Rss:                  10 kB\nAnonymous:            10 kB\nSwap:                  0 kB\n\
        7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n\
        Rss:                  30 kB\nAnonymous:            30 kB\nSwap:                  0 kB\n\
        7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]\n\
        Rss:                   4 kB\nAnonymous:             0 kB\nSwap:                  0 kB\n";

    #[test]
    fn mappings_are_told_apart_by_their_names() {
        let regions = Regions::from_smaps(SMAPS);
        let want = Regions {
            heap_bytes: 501 << 10,
            anonymous_bytes: 4010 << 10,
            stack_bytes: 30 << 10,
            file_copy_bytes: 24 << 10,
            device_bytes: 0,
            other_bytes: 0,
            file_cache_bytes: 284 << 10,
        };
        assert_eq!(regions, want);
        assert_eq!(regions.footprint_bytes(), (501 + 4010 + 30 + 24) << 10);
    }

    #[test]
    fn what_is_no_smaps_file_has_no_regions() {
        assert_eq!(Regions::from_smaps("Rss: 4 kB\nnonsense - x\n-\n"), Regions::default());
        assert_eq!(Regions::read_linux(Path::new("/nowhere")), None);
    }

    #[test]
    fn regions_of_a_mac_are_told_apart_by_their_tags() {
        const PAGE: u64 = 16_384;
        let mut regions = Regions::default();
        let region = |tag, resident_pages| MacRegion { tag, resident_pages, ..MacRegion::default() };
        regions.add_macos(&region(2, 10), PAGE); // MALLOC_SMALL
        regions.add_macos(&MacRegion { reusable_pages: 4, swapped_pages: 2, ..region(1, 10) }, PAGE);
        regions.add_macos(&region(30, 3), PAGE);
        regions.add_macos(&region(100, 50), PAGE); // IOAccelerator
        regions.add_macos(&region(0, 7), PAGE);
        regions.add_macos(&region(33, 1), PAGE); // dyld
        regions.add_macos(&MacRegion { is_file: true, dirtied_pages: 2, ..region(0, 9) }, PAGE);
        let want = Regions {
            heap_bytes: 18 * PAGE,
            anonymous_bytes: 7 * PAGE,
            stack_bytes: 3 * PAGE,
            file_copy_bytes: 2 * PAGE,
            device_bytes: 50 * PAGE,
            other_bytes: PAGE,
            file_cache_bytes: 7 * PAGE,
        };
        assert_eq!(regions, want);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_regions_of_this_process_add_up_to_its_footprint() {
        let regions = Regions::read().unwrap();
        let footprint = crate::Probe::sample(&crate::LinuxProbe::new()).footprint.unwrap();
        // Other tests allocate between the two readings.
        let apart = regions.footprint_bytes().abs_diff(footprint);
        assert!(apart < 256 << 20, "{regions:?}, footprint {footprint}");
        assert!(regions.stack_bytes > 0 && regions.file_cache_bytes > 0, "{regions:?}");
    }
}
