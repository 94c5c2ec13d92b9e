//! Logic that Verilator compiled, in a library that is loaded when it is asked for: the C side.
//!
//! `gateware/sim/vfpga.h` has the same records and calls.

mod port;

use std::ffi::{CStr, CString, c_void};
use std::mem::{size_of, transmute_copy};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

pub use port::{PortIn, PortOut};

/// The records and calls that this program knows; a library of others is refused.
const ABI: u32 = 7;

/// What the shell drives in a cycle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are wires of the shell's ports, by their names there")]
pub struct In {
    pub wdata: u64,
    pub recv_keep: u64,
    pub recv_data: [u8; 64],
    pub awaddr: u16,
    pub araddr: u16,
    pub rst_n: u8,
    pub awvalid: u8,
    pub wvalid: u8,
    pub wstrb: u8,
    pub bready: u8,
    pub arvalid: u8,
    pub rready: u8,
    pub sq_rd_ready: u8,
    pub sq_wr_ready: u8,
    pub cq_rd_valid: u8,
    pub cq_rd_stream: u8,
    pub cq_wr_valid: u8,
    pub cq_wr_stream: u8,
    pub recv_valid: u8,
    pub recv_last: u8,
    pub send_ready: u8,
    pub notify_ready: u8,
    pub pad: [u8; 3],
}

/// What the logic drives in the same cycle.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are wires of the shell's ports, by their names there")]
pub struct Out {
    pub rdata: u64,
    pub sq_rd_address: u64,
    pub sq_wr_address: u64,
    pub send_keep: u64,
    pub send_data: [u8; 64],
    pub sq_rd_length: u32,
    pub sq_wr_length: u32,
    pub notify: u32,
    pub awready: u8,
    pub wready: u8,
    pub bvalid: u8,
    pub arready: u8,
    pub rvalid: u8,
    pub sq_rd_valid: u8,
    pub sq_rd_stream: u8,
    pub sq_wr_valid: u8,
    pub sq_wr_stream: u8,
    pub recv_ready: u8,
    pub send_valid: u8,
    pub send_last: u8,
    pub notify_valid: u8,
    pub pad: [u8; 7],
}

const _: () = assert!(size_of::<In>() == 104 && size_of::<Out>() == 128);

impl Default for In {
    /// Everything is 0.
    fn default() -> Self {
        Self {
            wdata: 0,
            recv_keep: 0,
            recv_data: [0; 64],
            awaddr: 0,
            araddr: 0,
            rst_n: 0,
            awvalid: 0,
            wvalid: 0,
            wstrb: 0,
            bready: 0,
            arvalid: 0,
            rready: 0,
            sq_rd_ready: 0,
            sq_wr_ready: 0,
            cq_rd_valid: 0,
            cq_rd_stream: 0,
            cq_wr_valid: 0,
            cq_wr_stream: 0,
            recv_valid: 0,
            recv_last: 0,
            send_ready: 0,
            notify_ready: 0,
            pad: [0; 3],
        }
    }
}

impl Default for Out {
    /// Everything is 0.
    fn default() -> Self {
        Self {
            rdata: 0,
            sq_rd_address: 0,
            sq_wr_address: 0,
            send_keep: 0,
            send_data: [0; 64],
            sq_rd_length: 0,
            sq_wr_length: 0,
            notify: 0,
            awready: 0,
            wready: 0,
            bvalid: 0,
            arready: 0,
            rvalid: 0,
            sq_rd_valid: 0,
            sq_rd_stream: 0,
            sq_wr_valid: 0,
            sq_wr_stream: 0,
            recv_ready: 0,
            send_valid: 0,
            send_last: 0,
            notify_valid: 0,
            pad: [0; 7],
        }
    }
}

/// A table of the queue engine, as the C side numbers them.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Keys.
    Keys,
    /// Queue pairs, as the transport's questions find them.
    FoundQps,
    /// The same, for those who work on them.
    ReadQps,
    /// Completion queues.
    Cqs,
    /// Receive queues.
    Rqs,
    /// Messages, as the transport asks for their bytes.
    AskedMessages,
    /// The same, as they end.
    EndedMessages,
    /// Their elements.
    MessageElements,
    /// Receives that are claimed, as the transport fills them.
    AskedReceives,
    /// The same, as they complete.
    EndedReceives,
    /// Their elements.
    ReceiveElements,
    /// Indices of send queues.
    SendIndices,
    /// Numbers of messages, as queue pairs are found.
    FoundMessages,
    /// Room that the transport gave, for those who use it.
    UsedRoom,
    /// The same, for what is added.
    GivenRoom,
    /// Indices of receive queues.
    ReceiveIndices,
    /// Numbers of receives, as queue pairs are found.
    FoundReceives,
    /// The same, as they complete.
    ReadReceives,
    /// Indices of completion queues.
    CompletionIndices,
    /// Queue pairs, as the transport gives them room.
    RoomQps,
    /// How many users completion queues have.
    CqUsers,
    /// How many users receive queues have.
    RqUsers,
}

/// Why there is no logic of a library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It cannot be loaded.
    #[error("{path} cannot be loaded ({why}); build it: cargo xtask gateware build")]
    Library {
        /// The library.
        path: String,
        /// What the loader says.
        why: String,
    },
    /// It was built for another program than this one.
    #[error(
        "{path} is of another build than this program; build it again: cargo xtask gateware build"
    )]
    Stale {
        /// The library.
        path: String,
    },
    /// It makes no logic.
    #[error("there is no memory for the logic of {path}")]
    Memory {
        /// The library.
        path: String,
    },
}

type New = unsafe extern "C" fn(u64) -> *mut c_void;
type Delete = unsafe extern "C" fn(*mut c_void);
type Settle = unsafe extern "C" fn(*mut c_void, *const In, *mut Out);
type Clock = unsafe extern "C" fn(*mut c_void);
type Drive = unsafe extern "C" fn(*mut c_void, *const PortIn);
type Read = unsafe extern "C" fn(*mut c_void, *mut PortOut);
type Flip = unsafe extern "C" fn(*mut c_void, u32, u32);

/// The calls of a library, which stays loaded for good: logic of it may be anywhere.
#[derive(Clone, Debug)]
pub struct Library {
    path: Arc<str>,
    new: New,
    delete: Delete,
    settle: Settle,
    clock: Clock,
    /// Of logic that has port N, which is a queue engine.
    port: Option<(Drive, Read, Flip)>,
}

impl Library {
    /// Loads the library of that path. Its code becomes a part of this program: it has to come from where the program
    /// comes from.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let shown = path.display().to_string();
        let failed = |why: String| LoadError::Library { path: shown.clone(), why };
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|_| failed("its path has a zero".to_owned()))?;
        // SAFETY: the name is a string of C. The library's own initialisation is the C++ runtime's and Verilator's tables.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else { return Err(failed(reason())) };
        let find = |name: &CStr| {
            // SAFETY: the handle is of a library that is never unloaded, the name a string of C.
            let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            NonNull::new(found).ok_or_else(|| LoadError::Stale { path: shown.clone() })
        };
        let abi = find(c"vfpga_abi")?;
        // SAFETY: vfpga.h declares it so, and any library that has this name is made of that file.
        let abi: unsafe extern "C" fn() -> u32 = unsafe { transmute_copy(&abi) };
        // SAFETY: it takes nothing and reads a constant.
        if unsafe { abi() } != ABI {
            return Err(LoadError::Stale { path: shown });
        }
        let [new, delete] = [find(c"vfpga_new")?, find(c"vfpga_delete")?];
        let [settle, clock] = [find(c"vfpga_settle")?, find(c"vfpga_clock")?];
        // SAFETY: vfpga.h of this number of the interface declares them so; a pointer to a function has the size of one to
        // data here.
        let (new, delete) = unsafe { (transmute_copy(&new), transmute_copy(&delete)) };
        // SAFETY: as above.
        let (settle, clock) = unsafe { (transmute_copy(&settle), transmute_copy(&clock)) };
        let calls = [c"vfpga_port_drive", c"vfpga_port_read", c"vfpga_flip"].map(find);
        let port = match calls {
            [Ok(drive), Ok(read), Ok(flip)] => {
                // SAFETY: as above.
                let (drive, read) = unsafe { (transmute_copy(&drive), transmute_copy(&read)) };
                // SAFETY: as above.
                Some((drive, read, unsafe { transmute_copy(&flip) }))
            }
            _ => None,
        };
        Ok(Self { path: shown.into(), new, delete, settle, clock, port })
    }

    /// Makes logic, whose registers and memories hold what the seed says.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn make(&self, seed: u64) -> Result<Logic, LoadError> {
        // SAFETY: the call is of a library of this interface.
        let logic = unsafe { (self.new)(seed) };
        let logic = NonNull::new(logic);
        let logic = logic.ok_or_else(|| LoadError::Memory { path: self.path.to_string() })?;
        Ok(Logic { library: self.clone(), logic })
    }
}

/// What the loader says of the last failure of this thread.
fn reason() -> String {
    // SAFETY: it takes nothing; what it gives is a string of C until the next call of the loader in this thread.
    let said = unsafe { libc::dlerror() };
    if said.is_null() {
        return "no reason is known".to_owned();
    }
    // SAFETY: see above.
    unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
}

/// One piece of logic.
#[derive(Debug)]
pub struct Logic {
    library: Library,
    logic: NonNull<c_void>,
}

// SAFETY: what Verilator makes is bound to no thread, each piece of logic has a context of its own, and it is reached
// through `&mut` alone.
unsafe impl Send for Logic {}

impl Logic {
    /// Settles all wires of a cycle: what the logic drives as long as the shell drives that.
    pub fn settle(&mut self, shell: &In) -> Out {
        let mut out = Out::default();
        // SAFETY: the logic is of that library and lives; both records have the layout of vfpga.h.
        unsafe { (self.library.settle)(self.logic.as_ptr(), shell, &raw mut out) };
        out
    }

    /// Sets what is driven at port N in the cycle that is settled next; nothing where the logic has no such port.
    pub fn drive_port(&mut self, port: &PortIn) {
        if let Some((drive, ..)) = self.library.port {
            // SAFETY: the logic is of that library and lives; the record has the layout of vfpga.h.
            unsafe { drive(self.logic.as_ptr(), port) };
        }
    }

    /// What the logic drives at port N in the cycle that was settled last.
    pub fn read_port(&mut self) -> PortOut {
        let mut port = PortOut::default();
        if let Some((_, read, _)) = self.library.port {
            // SAFETY: as above.
            unsafe { read(self.logic.as_ptr(), &raw mut port) };
        }
        port
    }

    /// Flips a bit of all that the logic has in a table; nothing where it is no queue engine.
    pub fn flip(&mut self, table: Table, bit: u32) {
        if let Some((.., flip)) = self.library.port {
            // SAFETY: the logic is of that library and lives.
            unsafe { flip(self.logic.as_ptr(), table as u32, bit) };
        }
    }

    /// Ends the cycle, as it was settled.
    pub fn clock(&mut self) {
        // SAFETY: the logic is of that library and lives.
        unsafe { (self.library.clock)(self.logic.as_ptr()) };
    }
}

impl Drop for Logic {
    fn drop(&mut self) {
        // SAFETY: it was made by that library, and nobody reaches it from here on.
        unsafe { (self.library.delete)(self.logic.as_ptr()) };
    }
}
