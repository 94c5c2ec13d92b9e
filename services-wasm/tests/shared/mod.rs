//! Modules for tests, from their text.

use std::fmt::Write as _;
use std::sync::Arc;

use services::{Chain, ServedQp};
use services_wasm::Module;

/// The description of a module, as its bytes are.
#[derive(Clone)]
pub struct Description {
    pub name: &'static str,
    pub summary: &'static str,
    pub operations: u32,
    pub takes: u32,
    pub gives: u32,
    pub flags: u32,
    pub check_state: u32,
    pub act_state: u32,
    pub work: u32,
}

/// Of a service for all operations, with 64 bytes of state at each stage.
pub const ANY: Description = Description {
    name: "any",
    summary: "does anything",
    operations: 7,
    takes: 0,
    gives: 0,
    flags: 0,
    check_state: 64,
    act_state: 64,
    work: 20_000,
};

impl Description {
    fn text(&self) -> String {
        let filled = |text: &str, length| {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(length, 0);
            bytes
        };
        let numbers = [self.operations, self.takes, self.gives, self.flags];
        let more = [self.check_state, self.act_state, self.work, 0];
        let mut bytes = [filled(self.name, 16), filled(self.summary, 80)].concat();
        bytes.extend(numbers.into_iter().chain(more).flat_map(u32::to_le_bytes));
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "\\{byte:02x}");
            text
        })
    }
}

/// The functions by which a module tells of itself, and its memory of one page.
pub const TELLING: &str = r#"
    (memory (export "memory") 1)
    (func (export "balboa_interface") (result i32) (i32.const 1))
    (func (export "balboa_about") (result i32) (i32.const 1024))
    (func (export "balboa_room") (result i32) (i32.const 4096))
"#;
/// The addresses of a packet's state and payload, where the room is at 4096.
pub const STATE: u32 = 4096 + 64;
pub const PAYLOAD: u32 = 4096 + 64 + 4096;

/// A module with a description, and this text.
pub fn module_of(description: &Description, text: &str) -> Vec<u8> {
    let described = description.text();
    wat::parse_str(format!("(module {text} (data (i32.const 1024) \"{described}\"))")).unwrap()
}

/// A module that tells of itself, and has this text beside.
pub fn module(description: &Description, text: &str) -> Vec<u8> {
    module_of(description, &format!("{TELLING}{text}"))
}

/// A service of such a module.
pub fn service(description: &Description, text: &str) -> Arc<Module> {
    Arc::new(Module::load(&module(description, text)).unwrap())
}

/// A connection with a service.
pub fn connection(service: &Arc<Module>) -> ServedQp {
    ServedQp::new(Arc::new(Chain::new(vec![service.clone()]).unwrap()))
}
