//! Where a card looks for doorbells.

use fpga_regs::engine::wqe::SendOpcode;

use super::rig::{PAGE, Rig};

#[test]
fn a_borrowed_card_looks_for_doorbells_in_the_pages_that_were_stored_to_by_its_registers() {
    let mut rig = Rig::new();
    rig.work();
    rig.post(SendOpcode::Write, 8);
    assert_eq!(rig.work_borrowed().len(), 0, "its owner is woken for that");
    rig.store_to_page(PAGE + 1);
    assert_eq!(rig.work_borrowed().len(), 0, "another page");
    rig.store_to_page(PAGE);
    assert_eq!(rig.work_borrowed().len(), 1);
    rig.post(SendOpcode::Write, 8);
    assert_eq!(rig.work_borrowed().len(), 0, "it has looked there once");
    assert_eq!(rig.work().len(), 1, "its owner looks everywhere");
}
