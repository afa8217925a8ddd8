//! Instructions on tiles from their bytes: Intel Software Developer's Manual, volume 2, sections 2.1 (ModRM and SIB) and 2.3 (VEX), and the
//! page of each instruction.

use crate::tiles::TILES;

/// Most bytes of an instruction.
pub(crate) const MAX_BYTES: usize = 15;

/// What the emulator executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// `ldtilecfg`.
    LoadConfig(Memory),
    /// `sttilecfg`.
    StoreConfig(Memory),
    /// `tilerelease`.
    Release,
    /// `tilezero`.
    Zero(usize),
    /// `tileloadd` and `tileloaddt1`, which differ in what they leave in caches.
    Load(usize, Memory),
    /// `tilestored`.
    Store(usize, Memory),
    /// `tdpbf16ps`.
    Product { sums: usize, left: usize, right: usize },
    /// Does nothing here. Every processor has it, but kernels have many between instructions on tiles: one signal less for each run of them.
    Prefetch,
}

/// An operand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    base: Base,
    /// Number of a register, and by how many bits its value is shifted to the left.
    index: Option<(usize, u8)>,
    displacement: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    None,
    /// Number of a register.
    Register(usize),
    /// The address of the instruction that follows.
    Next,
}

/// What addresses are made of.
#[derive(Debug)]
pub(crate) struct Registers {
    /// In the order of their numbers: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub(crate) general: [usize; 16],
    /// The address of the instruction that follows.
    pub(crate) next: usize,
}

impl Memory {
    /// Address of the first row of a tile.
    pub(crate) fn start(&self, registers: &Registers) -> usize {
        let base = match self.base {
            Base::None => 0,
            Base::Register(number) => registers.general[number],
            Base::Next => registers.next,
        };
        base.wrapping_add_signed(self.displacement as isize)
    }

    /// Bytes from a row of a tile to the next one, modulo 2^64.
    pub(crate) fn stride(&self, registers: &Registers) -> usize {
        self.index.map_or(0, |(number, shift)| registers.general[number] << shift)
    }

    /// Address of what is not a tile.
    pub(crate) fn address(&self, registers: &Registers) -> usize {
        self.start(registers).wrapping_add(self.stride(registers))
    }
}

/// The instruction and its length in bytes; `None` if it is none of ours. Takes no byte past the instruction: it may be the last one of a page.
pub(crate) fn decode(bytes: impl Iterator<Item = u8>) -> Option<(Instruction, usize)> {
    let mut bytes = Bytes { rest: bytes, taken: 0 };
    let instruction = match bytes.next()? {
        0xc4 => vex(&mut bytes)?,
        first => prefetch(first, &mut bytes)?,
    };
    Some((instruction, bytes.taken))
}

/// Bytes of an instruction, counted.
struct Bytes<I> {
    rest: I,
    taken: usize,
}

impl<I: Iterator<Item = u8>> Bytes<I> {
    fn next(&mut self) -> Option<u8> {
        self.taken += 1;
        self.rest.next()
    }

    fn next_i8(&mut self) -> Option<i32> {
        Some(self.next()?.cast_signed().into())
    }

    fn next_i32(&mut self) -> Option<i32> {
        Some(i32::from_le_bytes([self.next()?, self.next()?, self.next()?, self.next()?]))
    }
}

/// The byte of operands: how `rm` is meant (3: a register), a register or a part of the opcode, and a register or memory.
struct ModRm {
    mode: u8,
    reg: u8,
    rm: u8,
}

impl ModRm {
    fn new(byte: u8) -> Self {
        Self { mode: byte >> 6, reg: byte >> 3 & 7, rm: byte & 7 }
    }

    /// Whether `rm` is memory of a base and an index, the only kind that rows of a tile are loaded from.
    fn has_index(&self) -> bool {
        self.mode != 3 && self.rm == 4
    }
}

/// High bits of the numbers of registers, as 0 or 8.
struct High {
    reg: u8,
    index: u8,
    base: u8,
}

/// All but the first byte of an instruction with the long VEX prefix.
fn vex(bytes: &mut Bytes<impl Iterator<Item = u8>>) -> Option<Instruction> {
    const MAP_0F38: u8 = 2;
    /// `W` and `L`, which all of ours have zero.
    const WIDE: u8 = 0x84;
    // Prefixes that are part of the opcode.
    const NONE: u8 = 0;
    const P66: u8 = 1;
    const F3: u8 = 2;
    const F2: u8 = 3;
    let (first, second) = (bytes.next()?, bytes.next()?);
    if first & 0x1f != MAP_0F38 || second & WIDE != 0 {
        return None;
    }
    // Registers are stored inverted.
    let high = |bit: u8| if first & bit == 0 { 8 } else { 0 };
    let high = High { reg: high(0x80), index: high(0x40), base: high(0x20) };
    let third = !second >> 3 & 15;
    let opcode = bytes.next()?;
    let operands = ModRm::new(bytes.next()?);
    let ModRm { mode, reg, rm } = operands;
    let in_memory = mode != 3;
    Some(match (opcode, second & 3) {
        (0x49, NONE) if in_memory && reg == 0 && third == 0 => {
            Instruction::LoadConfig(memory(&operands, &high, bytes)?)
        }
        (0x49, P66) if in_memory && reg == 0 && third == 0 => {
            Instruction::StoreConfig(memory(&operands, &high, bytes)?)
        }
        (0x49, NONE) if !in_memory && reg == 0 && rm == 0 && third == 0 => Instruction::Release,
        (0x49, F2) if !in_memory && rm == 0 && third == 0 => Instruction::Zero(tile(reg + high.reg)?),
        (0x4b, F2 | P66) if operands.has_index() && third == 0 => {
            Instruction::Load(tile(reg + high.reg)?, memory(&operands, &high, bytes)?)
        }
        (0x4b, F3) if operands.has_index() && third == 0 => {
            Instruction::Store(tile(reg + high.reg)?, memory(&operands, &high, bytes)?)
        }
        (0x5c, F3) if !in_memory => {
            Instruction::Product { sums: tile(reg + high.reg)?, left: tile(rm + high.base)?, right: tile(third)? }
        }
        _ => return None,
    })
}

fn tile(number: u8) -> Option<usize> {
    Some(number.into()).filter(|number| *number < TILES)
}

/// All but the first byte of a prefetch to some level of caches.
fn prefetch(first: u8, bytes: &mut Bytes<impl Iterator<Item = u8>>) -> Option<Instruction> {
    const NO_REX: u8 = 0x40;
    let (rex, first) = if first & 0xf0 == NO_REX { (first, bytes.next()?) } else { (NO_REX, first) };
    if first != 0x0f || bytes.next()? != 0x18 {
        return None;
    }
    let operands = ModRm::new(bytes.next()?);
    if operands.mode == 3 || operands.reg > 3 {
        return None;
    }
    memory(&operands, &High { reg: 0, index: rex << 2 & 8, base: rex << 3 & 8 }, bytes)?;
    Some(Instruction::Prefetch)
}

/// The operand in memory: an SIB byte if there is one, and the displacement.
fn memory(operands: &ModRm, high: &High, bytes: &mut Bytes<impl Iterator<Item = u8>>) -> Option<Memory> {
    /// In the place of a base without a displacement: there is none, but four bytes of displacement.
    const NO_BASE: u8 = 5;
    let is_short = operands.mode == 0;
    let mut index = None;
    let base = if operands.rm == 4 {
        let sib = bytes.next()?;
        let number = (sib >> 3 & 7) + high.index;
        // The number of rsp stands for no index.
        index = (number != 4).then_some((number.into(), sib >> 6));
        let base = sib & 7;
        if is_short && base == NO_BASE { Base::None } else { Base::Register((base + high.base).into()) }
    } else if is_short && operands.rm == NO_BASE {
        Base::Next
    } else {
        Base::Register((operands.rm + high.base).into())
    };
    let displacement = match operands.mode {
        0 if matches!(base, Base::Register(_)) => 0,
        1 => bytes.next_i8()?,
        _ => bytes.next_i32()?,
    };
    Some(Memory { base, index, displacement })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: usize = 0;
    const RCX: usize = 1;
    const RDX: usize = 2;
    const RBX: usize = 3;
    const RSP: usize = 4;
    const RBP: usize = 5;
    const RSI: usize = 6;
    const RDI: usize = 7;

    fn at(base: usize, index: Option<(usize, u8)>, displacement: i32) -> Memory {
        Memory { base: Base::Register(base), index, displacement }
    }

    /// Decodes `bytes`, and refuses to take one that follows them.
    fn check(bytes: &[u8], want: Option<Instruction>) {
        let got = decode(bytes.iter().copied());
        assert_eq!(got, want.map(|want| (want, bytes.len())), "{bytes:02x?}");
    }

    #[test]
    fn a_configuration_is_loaded_from_and_stored_to_every_kind_of_address() {
        let load = |bytes: &[u8], memory| check(bytes, Some(Instruction::LoadConfig(memory)));
        // [rax], [r8], [rsp], [rip + 0x1234], [rsp + 0x10], [r13]
        load(&[0xc4, 0xe2, 0x78, 0x49, 0x00], at(RAX, None, 0));
        load(&[0xc4, 0xc2, 0x78, 0x49, 0x00], at(8, None, 0));
        load(&[0xc4, 0xe2, 0x78, 0x49, 0x04, 0x24], at(RSP, None, 0));
        let next = Memory { base: Base::Next, index: None, displacement: 0x1234 };
        load(&[0xc4, 0xe2, 0x78, 0x49, 0x05, 0x34, 0x12, 0x00, 0x00], next);
        load(&[0xc4, 0xe2, 0x78, 0x49, 0x44, 0x24, 0x10], at(RSP, None, 0x10));
        load(&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0x00], at(13, None, 0));
        // [rbx + r12 * 8 - 0x1000], [r12 * 4 + 0x20], [0x12345678]
        load(&[0xc4, 0xa2, 0x78, 0x49, 0x84, 0xe3, 0x00, 0xf0, 0xff, 0xff], at(RBX, Some((12, 3)), -0x1000));
        let index = Memory { base: Base::None, index: Some((12, 2)), displacement: 0x20 };
        load(&[0xc4, 0xa2, 0x78, 0x49, 0x04, 0xa5, 0x20, 0x00, 0x00, 0x00], index);
        let absolute = Memory { base: Base::None, index: None, displacement: 0x1234_5678 };
        load(&[0xc4, 0xe2, 0x78, 0x49, 0x04, 0x25, 0x78, 0x56, 0x34, 0x12], absolute);
        // sttilecfg [rdi + 8]
        check(&[0xc4, 0xe2, 0x79, 0x49, 0x47, 0x08], Some(Instruction::StoreConfig(at(RDI, None, 8))));
    }

    #[test]
    fn tiles_are_loaded_and_stored_by_base_index_and_displacement() {
        let load = |bytes: &[u8], tile, memory| check(bytes, Some(Instruction::Load(tile, memory)));
        // tileloadd tmm4, [rdi + rsi]; tmm5, [r9 + r10 * 2 + 0x400]; tmm2, [rbp + rax]
        load(&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x37], 4, at(RDI, Some((RSI, 0)), 0));
        load(&[0xc4, 0x82, 0x7b, 0x4b, 0xac, 0x51, 0x00, 0x04, 0x00, 0x00], 5, at(9, Some((10, 1)), 0x400));
        load(&[0xc4, 0xe2, 0x7b, 0x4b, 0x54, 0x05, 0x00], 2, at(RBP, Some((RAX, 0)), 0));
        // tileloaddt1 tmm1, [r13 + r15]
        load(&[0xc4, 0x82, 0x79, 0x4b, 0x4c, 0x3d, 0x00], 1, at(13, Some((15, 0)), 0));
        let store = |bytes: &[u8], tile, memory| check(bytes, Some(Instruction::Store(tile, memory)));
        // tilestored [rcx + rdx + 0x40], tmm3; [rcx], tmm3
        store(&[0xc4, 0xe2, 0x7a, 0x4b, 0x5c, 0x11, 0x40], 3, at(RCX, Some((RDX, 0)), 0x40));
        store(&[0xc4, 0xe2, 0x7a, 0x4b, 0x1c, 0x21], 3, at(RCX, None, 0));
    }

    #[test]
    fn what_has_no_memory_names_its_tiles() {
        check(&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Some(Instruction::Release));
        check(&[0xc4, 0xe2, 0x7b, 0x49, 0xc0], Some(Instruction::Zero(0)));
        check(&[0xc4, 0xe2, 0x7b, 0x49, 0xf8], Some(Instruction::Zero(7)));
        // tdpbf16ps tmm0, tmm4, tmm6; tmm3, tmm5, tmm7
        check(&[0xc4, 0xe2, 0x4a, 0x5c, 0xc4], Some(Instruction::Product { sums: 0, left: 4, right: 6 }));
        check(&[0xc4, 0xe2, 0x42, 0x5c, 0xdd], Some(Instruction::Product { sums: 3, left: 5, right: 7 }));
    }

    #[test]
    fn prefetches_are_passed_over() {
        // prefetcht0 [r9 + 128], [rsi], [rsi + 1984]
        check(&[0x41, 0x0f, 0x18, 0x89, 0x80, 0x00, 0x00, 0x00], Some(Instruction::Prefetch));
        check(&[0x0f, 0x18, 0x0e], Some(Instruction::Prefetch));
        check(&[0x0f, 0x18, 0x8e, 0xc0, 0x07, 0x00, 0x00], Some(Instruction::Prefetch));
    }

    #[test]
    fn other_instructions_are_none_of_ours() {
        let others: [&[u8]; 13] = [
            // ud2, and no instruction at all
            &[0x0f, 0x0b],
            &[],
            // tdpbf16ps cut short, with W, with L, with a tile 8 in each place, with memory
            &[0xc4, 0xe2, 0x4a, 0x5c],
            &[0xc4, 0xe2, 0xca, 0x5c, 0xc4],
            &[0xc4, 0xe2, 0x4e, 0x5c, 0xc4],
            &[0xc4, 0x62, 0x4a, 0x5c, 0xc4],
            &[0xc4, 0xc2, 0x4a, 0x5c, 0xc4],
            &[0xc4, 0xe2, 0x3a, 0x5c, 0xc4],
            &[0xc4, 0xe2, 0x4a, 0x5c, 0x04, 0x24],
            // tdpbssd tmm0, tmm4, tmm6; tdpfp16ps of the same
            &[0xc4, 0xe2, 0x4b, 0x5e, 0xc4],
            &[0xc4, 0xe2, 0x4b, 0x5c, 0xc4],
            // tileloadd without an SIB byte
            &[0xc4, 0xe2, 0x7b, 0x4b, 0x07],
            // a prefetch of a register
            &[0x0f, 0x18, 0xc8],
        ];
        others.into_iter().for_each(|bytes| check(bytes, None));
    }

    #[test]
    fn an_address_is_its_parts_modulo_the_size_of_a_register() {
        let registers = Registers { general: std::array::from_fn(|number| 1 << number), next: 0x5000 };
        let memory = at(RBX, Some((12, 3)), -4);
        assert_eq!((memory.start(&registers), memory.stride(&registers)), (4, 8 << 12));
        assert_eq!(memory.address(&registers), 4 + (8 << 12));
        let next = Memory { base: Base::Next, index: None, displacement: -0x10 };
        assert_eq!(next.address(&registers), 0x4ff0);
        // Rows that go down.
        let registers = Registers { general: [usize::MAX - 63; 16], next: 0 };
        assert_eq!(at(RAX, Some((RCX, 1)), 128).start(&registers), 64);
        assert_eq!(at(RAX, Some((RCX, 1)), 128).stride(&registers), 128usize.wrapping_neg());
    }
}
