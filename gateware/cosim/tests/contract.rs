//! The driver that was written from the contract alone, on cards of software.

use cosim::contract::drive;
use fpga_regs::coyote::shell::Map;
use softcard::Image;

#[test]
fn a_driver_written_from_the_document_alone_brings_two_cards_up_and_writes() {
    drive(Image::Vqe, Map::Since2026).unwrap();
}

#[test]
fn the_same_driver_drives_shells_of_before_2026() {
    drive(Image::Vqe, Map::Before2026).unwrap();
}
