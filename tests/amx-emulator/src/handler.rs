//! The signal handler, how it gets into a process, and the count of products that proves it was needed.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, ptr};

use crate::decode::{Instruction, MAX_BYTES, Registers, decode};
use crate::tiles::{CONFIG_BYTES, Fault, Tiles};

/// Names a file that a process appends the number of its products to when it ends.
const COUNT_VARIABLE: &str = "PLIMSOLL_AMX_EMULATOR_COUNT";

/// Products of tiles so far, of all threads.
static PRODUCTS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Nothing to set up and nothing to drop, so a handler may use it at any time.
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles::RELEASED) };
}

/// Where a signal's context has the general registers, in the order of their numbers.
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Called by the loader, before the program's own `main`.
#[cfg(not(test))]
#[used]
// SAFETY: the section is an array of pointers to functions, which the loader calls one after the other.
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = install;

extern "C" fn install() {
    if !is_x86_feature_detected!("avx512f") {
        return;
    }
    // SAFETY: zeros are a valid set of signals and of flags. The handler is of the kind that the flag says, and `report` takes no arguments.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = (on_illegal_instruction as extern "C" fn(_, _, _)) as usize;
        libc::sigaction(libc::SIGILL, &raw const action, ptr::null_mut());
        libc::atexit(report);
    }
}

/// Executes the instruction that the thread stands at, and those right behind it, as far as they are on tiles. The signal comes where a
/// kernel has such an instruction, never from within the allocator or under a lock: so this may do what a handler of other signals must not.
extern "C" fn on_illegal_instruction(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system gives every handler with `SA_SIGINFO` the context that the thread goes on with.
    let context = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let general = GENERAL.map(|register| to_address(context[register as usize]));
    let mut at = to_address(context[libc::REG_RIP as usize]);
    let mut is_ours = false;
    // SAFETY: the thread stands here, so that every byte of the instruction can be read.
    while let Some((instruction, bytes)) = decode((at..at + MAX_BYTES).map(|at| unsafe { read(at) })) {
        let registers = Registers { general, next: at + bytes };
        // SAFETY: the thread is about to execute the instruction: what that reads and writes is what the program answers for.
        if let Err(fault) = TILES.with_borrow_mut(|tiles| unsafe { execute(instruction, &registers, tiles) }) {
            // What cannot be written is lost; the signal that follows says enough.
            let _ = writeln!(io::stderr(), "AMX emulator: {fault}, at {at:#x}: {instruction:?}");
            std::process::abort();
        }
        at = registers.next;
        is_ours = true;
    }
    if is_ours {
        context[libc::REG_RIP as usize] = i64::from_ne_bytes(at.to_ne_bytes());
    } else {
        // SAFETY: no memory of ours. The thread meets the same instruction again, and the process ends as it would have.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
    }
}

fn to_address(register: i64) -> usize {
    usize::from_ne_bytes(register.to_ne_bytes())
}

/// # Safety
/// The byte can be read.
unsafe fn read(address: usize) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { ptr::with_exposed_provenance::<u8>(address).read() }
}

/// # Safety
/// The memory that the instruction reads or writes is there, and nothing else refers to what it writes.
unsafe fn execute(instruction: Instruction, registers: &Registers, tiles: &mut Tiles) -> Result<(), Fault> {
    // SAFETY: the caller's promise, throughout.
    unsafe {
        match instruction {
            Instruction::LoadConfig(memory) => {
                let config = ptr::with_exposed_provenance::<[u8; CONFIG_BYTES]>(memory.address(registers));
                tiles.load_config(&config.read())
            }
            Instruction::StoreConfig(memory) => {
                ptr::with_exposed_provenance_mut::<[u8; CONFIG_BYTES]>(memory.address(registers)).write(tiles.config());
                Ok(())
            }
            Instruction::Release => {
                tiles.release();
                Ok(())
            }
            Instruction::Zero(tile) => tiles.zero(tile),
            Instruction::Load(tile, memory) => tiles.load(tile, memory.start(registers), memory.stride(registers)),
            Instruction::Store(tile, memory) => tiles.store(tile, memory.start(registers), memory.stride(registers)),
            Instruction::Product { sums, left, right } => {
                PRODUCTS.fetch_add(1, Ordering::Relaxed);
                tiles.add_product(sums, left, right)
            }
            Instruction::Prefetch => Ok(()),
        }
    }
}

/// Appends the number of products to the file that the environment names, if it names one.
extern "C" fn report() {
    let Some(path) = env::var_os(COUNT_VARIABLE) else { return };
    let line = format!("{}\n", PRODUCTS.load(Ordering::Relaxed));
    let file = fs::OpenOptions::new().create(true).append(true).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        // What cannot be written is lost; who counts will find too few.
        let _ = writeln!(io::stderr(), "AMX emulator: cannot write to {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;

    use super::*;
    use crate::product::tests::{add_by_definition, assert_same, random_tile};
    use crate::tiles::Tile;

    /// Whether instructions on tiles are unknown to this processor, and may be emulated.
    fn lacks_tiles() -> bool {
        const TILE: u32 = 1 << 24;
        is_x86_feature_detected!("avx512f") && __cpuid_count(7, 0).edx & TILE == 0
    }

    /// All tiles 16 rows of 64 bytes.
    fn config() -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        config[0] = 1;
        (16..32).step_by(2).for_each(|byte| config[byte] = 64);
        config[48..56].fill(16);
        config
    }

    #[test]
    fn a_program_goes_on_behind_instructions_that_were_emulated() {
        if !lacks_tiles() {
            return;
        }
        install();
        let mut seed = 1;
        let element = |bits: u32| bits & 0x81ff_81ff | 0x3e00_3e00;
        let (mut sums, left, right) =
            (random_tile(&mut seed, element), random_tile(&mut seed, element), random_tile(&mut seed, element));
        let mut want = sums;
        (0..3).for_each(|_| add_by_definition(&mut want, &left, &right, 16, 16));
        let before = PRODUCTS.load(Ordering::Relaxed);
        let (config, mut stored) = (config(), [0; CONFIG_BYTES]);
        // SAFETY: tiles are configured, and operands are whole tiles.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "sttilecfg [{stored}]",
                "tileloadd tmm1, [{left} + {row}]",
                "tileloadd tmm7, [{right} + {row} - 64]",
                "tileloaddt1 tmm0, [{sums} + {row}]",
                "2:",
                "tdpbf16ps tmm0, tmm1, tmm7",
                "prefetcht0 [{right}]",
                "dec {count}",
                "jnz 2b",
                "tilestored [{sums} + {row}], tmm0",
                "tilerelease",
                config = in(reg) &raw const config,
                stored = in(reg) &raw mut stored,
                left = in(reg) &raw const left,
                right = in(reg) (&raw const right).wrapping_byte_add(64),
                sums = in(reg) &raw mut sums,
                row = in(reg) size_of::<Tile>() / 16,
                count = inout(reg) 3u64 => _,
                out("tmm0") _, out("tmm1") _, out("tmm7") _,
            );
        }
        assert_same(&sums, &want);
        assert_eq!(stored, config);
        assert!(PRODUCTS.load(Ordering::Relaxed) >= before + 3);
    }

    #[test]
    fn every_thread_has_tiles_of_its_own() {
        if !lacks_tiles() {
            return;
        }
        install();
        let config = config();
        // SAFETY: the operand is 64 valid bytes.
        unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &raw const config) };
        let stored = || {
            let mut stored = [1; CONFIG_BYTES];
            // SAFETY: the operand is 64 bytes of our own.
            unsafe { asm!("sttilecfg [{stored}]", stored = in(reg) &raw mut stored) };
            stored
        };
        let of_other = std::thread::spawn(stored).join().unwrap();
        assert_eq!((stored(), of_other), (config, [0; CONFIG_BYTES]));
        // SAFETY: no operands.
        unsafe { asm!("tilerelease") };
    }
}
