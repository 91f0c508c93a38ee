//! The lookups, made from the lines of the table at compile time.

use super::{Extensions, Extra, Opcode, OpcodeInfo, Operation, Position, ROWS, Service};
use crate::ib::Bth;

/// What each of the 256 codes says.
pub(super) static INFO: [Option<OpcodeInfo>; 256] = {
    let mut info = [None; 256];
    let mut index = 0;
    while index < ROWS.len() {
        info[Opcode::ALL[index].get() as usize] = Some(ROWS[index]);
        index += 1;
    }
    info
};

const SERVICES: usize = 1 << 3;
const OPERATIONS: usize = 1 << 4;
const POSITIONS: usize = 1 << 2;
const EXTRAS: usize = 1 << 2;

/// The code of each kind of packet.
static CODES: [Option<Opcode>; SERVICES * OPERATIONS * POSITIONS * EXTRAS] = {
    let mut codes = [None; SERVICES * OPERATIONS * POSITIONS * EXTRAS];
    let mut index = 0;
    while index < ROWS.len() {
        let row = &ROWS[index];
        let at = place(row.service, row.operation, row.position, row.extra());
        assert!(codes[at].is_none(), "two opcodes for one kind of packet");
        codes[at] = Some(Opcode::ALL[index]);
        index += 1;
    }
    codes
};

const fn place(service: Service, operation: Operation, position: Position, extra: Extra) -> usize {
    ((service as usize * OPERATIONS + operation as usize) * POSITIONS + position as usize) * EXTRAS
        + extra as usize
}

pub(super) const fn find(
    service: Service,
    operation: Operation,
    position: Position,
    extra: Extra,
) -> Option<Opcode> {
    CODES[place(service, operation, position, extra)]
}

pub(super) const fn row(
    name: &'static str,
    service: Service,
    operation: Operation,
    position: Position,
    extensions: Extensions,
) -> OpcodeInfo {
    OpcodeInfo {
        name,
        service,
        operation,
        position,
        extensions,
        header_len: Bth::LEN + extensions.header_len(),
    }
}
