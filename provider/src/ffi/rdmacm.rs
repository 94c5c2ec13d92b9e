//! The place inside librdmacm where the kernel's rdma_cm would answer.
//!
//! librdmacm opens a device node, looks whether it is one, writes commands to it and closes it. Where there
//! is no such node, its slots for these functions make a channel to balboad be the node
//! ([`crate::ucm`]); where the kernel has one, that is opened, and nothing here has to do with it. A copy of
//! librdmacm that is linked into a program statically is not found.
//!
//! Plug-ins are loaded when a process lists devices for the first time, which may be before it loads
//! librdmacm. So librdmacm is looked for whenever libibverbs lists them, as librdmacm has it do
//! before it opens its device: each listing sends a request by netlink, and reads a directory where
//! that is not answered.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::cancel::Uncancelled;
use super::elf::Library;
use super::{forks, hook};
use crate::control::ControlConnection;
use crate::error::Error;
use crate::ucm::{self, Command, Done};

/// How the file of librdmacm begins; in a bundle its name goes on with a digest.
const LIBRARY: &str = "librdmacm";
/// The directory from which libibverbs lists devices.
const LIST: &CStr = c"/class/infiniband_verbs";
/// The question by which libibverbs lists them if RDMA netlink answers: `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV,
/// RDMA_NLDEV_CMD_GET)`.
const LIST_BY_NETLINK: c_int = 5 << 10 | 1;
/// The file that librdmacm opens.
const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
type Fxstat = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type Close = unsafe extern "C" fn(c_int) -> c_int;
type Opendir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
/// libnl's, whose socket stays opaque here.
type SendSimple = unsafe extern "C" fn(*mut c_void, c_int, c_int, *mut c_void, usize) -> c_int;

/// Where the calls led before; 0 stands for the C library.
static NEXT_OPEN: AtomicUsize = AtomicUsize::new(0);
static NEXT_FSTAT: AtomicUsize = AtomicUsize::new(0);
static NEXT_FXSTAT: AtomicUsize = AtomicUsize::new(0);
static NEXT_WRITE: AtomicUsize = AtomicUsize::new(0);
static NEXT_CLOSE: AtomicUsize = AtomicUsize::new(0);
static NEXT_OPENDIR: AtomicUsize = AtomicUsize::new(0);
static NEXT_SEND_SIMPLE: AtomicUsize = AtomicUsize::new(0);

/// Answers for the kernel in librdmacm, as soon as the process has it.
pub(super) fn install() {
    let installed = forks::hold_over_forks()
        .and_then(|()| hook::patch(c"opendir", opendir as *const () as usize, &NEXT_OPENDIR))
        .and_then(|()| {
            hook::patch(c"nl_send_simple", send_simple as *const () as usize, &NEXT_SEND_SIMPLE)
        });
    if let Err(why) = installed {
        crate::log::refused("the connection manager", &Error::Hook(why));
    }
    look();
}

/// Makes the calls of each librdmacm that is loaded lead here.
fn look() {
    // Listing devices is no place to be cancelled at.
    let _uncancelled = Uncancelled::now();
    let calls: [(&CStr, usize, &AtomicUsize); 8] = [
        (c"open", open as *const () as usize, &NEXT_OPEN),
        (c"open64", open as *const () as usize, &NEXT_OPEN),
        (c"fstat", fstat as *const () as usize, &NEXT_FSTAT),
        (c"fstat64", fstat as *const () as usize, &NEXT_FSTAT),
        // The name of `fstat` for programs of a C library older than 2.33.
        (c"__fxstat", fxstat as *const () as usize, &NEXT_FXSTAT),
        (c"__fxstat64", fxstat as *const () as usize, &NEXT_FXSTAT),
        (c"write", write as *const () as usize, &NEXT_WRITE),
        (c"close", close as *const () as usize, &NEXT_CLOSE),
    ];
    Library::each_named(LIBRARY, |library| {
        for (function, ours, next) in calls {
            // SAFETY: the library is not unloaded while it is visited.
            if let Err(error) = unsafe { hook::lead(library, function, ours, next) } {
                crate::log::refused("the connection manager", &error);
            }
        }
    });
}

/// libibverbs' `opendir`.
unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    look();
    // SAFETY: libibverbs passes a path.
    if unsafe { CStr::from_ptr(path) }.to_bytes().ends_with(LIST.to_bytes()) {
        // SAFETY: it reads that directory to list devices, and holds the lock of its list meanwhile.
        unsafe { super::device::give_up_lost() };
    }
    match NEXT_OPENDIR.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came.
        0 => unsafe { libc::opendir(path) },
        // SAFETY: the slot led to an `opendir`.
        next => unsafe { std::mem::transmute::<usize, Opendir>(next)(path) },
    }
}

/// libibverbs' `nl_send_simple`, by which it sends questions without attributes: about devices, and about all of them.
unsafe extern "C-unwind" fn send_simple(
    socket: *mut c_void,
    kind: c_int,
    flags: c_int,
    body: *mut c_void,
    bytes: usize,
) -> c_int {
    if kind == LIST_BY_NETLINK {
        look();
        // SAFETY: libibverbs asks for devices to list them, and holds the lock of its list meanwhile.
        unsafe { super::device::give_up_lost() };
    }
    match NEXT_SEND_SIMPLE.load(Ordering::Acquire) {
        // The linker had not looked for libnl's: there was no socket when devices were first listed. It fails
        // (NLE_FAILURE), as it would without one.
        0 => -1,
        // SAFETY: the slot led to libnl's, and the call is handed on as it came.
        next => unsafe {
            std::mem::transmute::<usize, SendSimple>(next)(socket, kind, flags, body, bytes)
        },
    }
}

/// librdmacm's `open`.
unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let opened = match NEXT_OPEN.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came; the C library's variadic function takes its third
        // argument as any function takes one on the processors supported.
        0 => unsafe { libc::open(path, flags, mode) },
        // SAFETY: the slot led to an `open`.
        next => unsafe { std::mem::transmute::<usize, Open>(next)(path, flags, mode) },
    };
    // SAFETY: librdmacm passes a path.
    if opened >= 0 || Errno::last() != Errno::ENOENT || unsafe { CStr::from_ptr(path) } != DEVICE {
        return opened;
    }
    open_channel(flags)
}

/// Opens a channel with the flags of the device's.
fn open_channel(flags: c_int) -> c_int {
    let _uncancelled = Uncancelled::now();
    let flags = OFlag::from_bits_truncate(flags);
    match ControlConnection::shared().and_then(|connection| ucm::open(connection, flags)) {
        Ok(channel) => channel.into_raw_fd(),
        Err(error) => hook::fail(no_channel(&error)),
    }
}

/// Tells why there is no channel, the first time aloud; returns the errno.
fn no_channel(error: &Error) -> c_int {
    static TOLD: AtomicBool = AtomicBool::new(false);
    match error {
        // Nobody uses these cards here: there is no such device.
        Error::NoDaemon { .. } => {
            crate::log::refused("opening rdma_cm", error);
            libc::ENOENT
        }
        _ if TOLD.swap(true, Ordering::Relaxed) => crate::log::refused("opening rdma_cm", error),
        _ => crate::log::unusable("rdma_cm", error),
    }
}

/// Changes the answer of `fstat` about a channel to the one about the kernel's device.
///
/// # Safety
/// Where `found` is 0 the call has written to `stat`.
unsafe fn as_device(fd: c_int, found: c_int, stat: *mut libc::stat) -> c_int {
    if found == 0 && ucm::known(fd).is_some() {
        // SAFETY: as the caller promises.
        unsafe { (*stat).st_mode = libc::S_IFCHR | 0o666 };
    }
    found
}

/// librdmacm's `fstat`.
unsafe extern "C" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    let found = match NEXT_FSTAT.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came.
        0 => unsafe { libc::fstat(fd, stat) },
        // SAFETY: the slot led to an `fstat`.
        next => unsafe { std::mem::transmute::<usize, Fstat>(next)(fd, stat) },
    };
    // SAFETY: the call was made with these arguments.
    unsafe { as_device(fd, found, stat) }
}

/// librdmacm's `__fxstat`; the version says how the structure looks, on these processors in one way.
unsafe extern "C" fn fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    let found = match NEXT_FXSTAT.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as the other function that does the same.
        0 => unsafe { libc::fstat(fd, stat) },
        // SAFETY: the slot led to an `__fxstat`.
        next => unsafe { std::mem::transmute::<usize, Fxstat>(next)(version, fd, stat) },
    };
    // SAFETY: the call was made with these arguments.
    unsafe { as_device(fd, found, stat) }
}

/// librdmacm's `close`.
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    forget(fd);
    match NEXT_CLOSE.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came.
        0 => unsafe { libc::close(fd) },
        // SAFETY: the slot led to a `close`.
        next => unsafe { std::mem::transmute::<usize, Close>(next)(fd) },
    }
}

/// Forgets the channel that a descriptor is, if it is one.
fn forget(fd: c_int) {
    let _uncancelled = Uncancelled::now();
    if ucm::known(fd).is_some() {
        ucm::forget(fd);
    }
}

/// The outcome of a `write`.
enum Written {
    /// It is not to a channel.
    Elsewhere,
    /// All of it, or it fails with an errno.
    Returned(Result<(), c_int>),
    /// There is no event yet.
    NoEvent,
}

/// librdmacm's `write`.
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize {
    loop {
        // SAFETY: librdmacm writes a command to a channel.
        match unsafe { command(fd, buffer, count) } {
            Written::Elsewhere => break,
            Written::Returned(Ok(())) => return count as isize,
            Written::Returned(Err(errno)) => return hook::fail(errno) as isize,
            // Nothing is held here: a thread may be cancelled while it waits.
            Written::NoEvent => {
                if let Err(errno) = ucm::wait(fd) {
                    return hook::fail(errno as i32) as isize;
                }
            }
        }
    }
    match NEXT_WRITE.load(Ordering::Acquire) {
        // SAFETY: the call is handed on as it came.
        0 => unsafe { libc::write(fd, buffer, count) },
        // SAFETY: the slot led to a `write`.
        next => unsafe { std::mem::transmute::<usize, Write>(next)(fd, buffer, count) },
    }
}

/// Executes a command that is written to a channel, without waiting for events.
///
/// # Safety
/// Where `fd` is a channel, `count` bytes can be read at `buffer`, and so is the memory that they name: a place for
/// as long an answer as they say, the value of an option.
unsafe fn command(fd: c_int, buffer: *const c_void, count: usize) -> Written {
    let _uncancelled = Uncancelled::now();
    let Some(channel) = ucm::known(fd) else { return Written::Elsewhere };
    let written = match buffer.is_null() {
        true => &[],
        // SAFETY: as the caller promises.
        false => unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) },
    };
    let done = Command::parse(written).and_then(|command| {
        let value = match command.value()? {
            // SAFETY: as the caller promises.
            Some((address, length)) => unsafe {
                std::slice::from_raw_parts(address as *const u8, length)
            },
            None => &[],
        };
        command.perform(fd, &channel, value)
    });
    match done {
        Ok(Done::Nothing) => Written::Returned(Ok(())),
        Ok(Done::Answered { address, output }) => {
            let place = address as *mut u8;
            // SAFETY: the answer is no longer than the command says that there is room for.
            unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), place, output.len()) };
            Written::Returned(Ok(()))
        }
        Ok(Done::NoEvent) => Written::NoEvent,
        Err(error) => Written::Returned(Err(crate::log::refused("rdma_cm", &error))),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
    use std::ptr::null_mut;
    use std::sync::Arc;

    use hostmem::fdpass::pair;
    use shim_abi::Response;

    use super::*;
    use crate::control::tests::{Script, answer, greeting, script};

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    /// A channel as librdmacm has it, balboad's end of it, and the thread that answers once.
    fn channel(answer_once: Response) -> (OwnedFd, OwnedFd, Script) {
        let (ours, theirs) = pair().unwrap();
        let opened = (answer(Response::CmChannel { channel: [1; 16] }).0, vec![ours]);
        let script = script(vec![greeting(), opened, answer(answer_once)]);
        let connection = Arc::new(ControlConnection::open(script.directory.path(), 30).unwrap());
        (ucm::open(connection, OFlag::O_RDWR).unwrap(), theirs, script)
    }

    fn is_device(fd: RawFd) -> bool {
        let mut stats = [MaybeUninit::<libc::stat>::uninit(); 2];
        let [plain, versioned] = &mut stats;
        // SAFETY: there is room for the answers.
        let found =
            unsafe { (fstat(fd, plain.as_mut_ptr()), fxstat(1, fd, versioned.as_mut_ptr())) };
        assert_eq!(found, (0, 0));
        // SAFETY: the calls have succeeded, and so have written them.
        let kinds = stats.map(|stat| unsafe { stat.assume_init() }.st_mode & libc::S_IFMT);
        assert_eq!(kinds[0], kinds[1]);
        kinds[0] == libc::S_IFCHR
    }

    #[test]
    fn a_channel_is_a_device_to_librdmacm_until_it_closes_it() {
        let (channel, _theirs, _script) = channel(Response::Done);
        let copy = channel.try_clone().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!((is_device(channel.as_raw_fd()), is_device(file.as_raw_fd())), (true, false));
        // SAFETY: the descriptor is handed over.
        assert_eq!(unsafe { close(channel.into_raw_fd()) }, 0);
        assert!(!is_device(copy.as_raw_fd()));
    }

    #[test]
    fn a_command_s_answer_stands_where_the_program_wants_it() {
        let output = vec![9, 0, 0, 0];
        let (channel, _theirs, _script) = channel(Response::CmAnswer { output, void: vec![] });
        let mut place = 0u32;
        let address = (&raw mut place).expose_provenance() as u64;
        // DESTROY_ID.
        let head = [1u32.to_ne_bytes(), [16, 0, 4, 0]].concat();
        let command = [&head[..], &address.to_ne_bytes(), &[0; 8]].concat();
        // SAFETY: the command is there, and names a place.
        let taken = unsafe { write(channel.as_raw_fd(), command.as_ptr().cast(), command.len()) };
        assert_eq!((taken, place), (24, 9));
        // SAFETY: there is nothing to be read.
        assert_eq!(unsafe { write(channel.as_raw_fd(), null_mut(), 0) }, -1);
        assert_eq!(Errno::last(), Errno::EINVAL);
        ucm::forget(channel.as_raw_fd());
    }

    #[test]
    fn a_write_to_something_else_goes_there() {
        let (reader, writer) = nix::unistd::pipe().unwrap();
        // SAFETY: three bytes are there.
        assert_eq!(unsafe { write(writer.as_raw_fd(), b"abc".as_ptr().cast(), 3) }, 3);
        let mut read = [0; 4];
        assert_eq!(nix::unistd::read(&reader, &mut read), Ok(3));
        assert_eq!(&read, b"abc\0");
    }

    extern "C-unwind" fn get_event(fd: *mut c_void) -> *mut c_void {
        const COMMAND: [u8; 16] = [12, 0, 0, 0, 8, 0, 120, 1, 8, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the command is there; there is no event, so nothing is written for it.
        unsafe { write(fd.addr() as c_int, COMMAND.as_ptr().cast(), COMMAND.len()) };
        null_mut()
    }

    #[test]
    fn a_thread_that_is_cancelled_while_it_waits_leaves_nothing_taken() {
        let (channel, _theirs, _script) =
            channel(Response::CmAnswer { output: vec![], void: vec![] });
        let mut thread = 0;
        let fd = channel.as_raw_fd() as usize as *mut c_void;
        let mut result = null_mut();
        type Thread = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
        // SAFETY: the function takes a number, and the thread is joined below. The type that `libc` has for
        // it leaves out only that it may be unwound.
        unsafe {
            let get_event =
                std::mem::transmute::<Thread, extern "C" fn(*mut c_void) -> *mut c_void>(get_event);
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), get_event, fd), 0);
            assert_eq!(pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
        // LISTEN.
        let head = [7u32.to_ne_bytes(), [8, 0, 0, 0]].concat();
        let command = [&head[..], &[0; 8]].concat();
        // SAFETY: the command is there.
        let taken = unsafe { write(channel.as_raw_fd(), command.as_ptr().cast(), command.len()) };
        assert_eq!(taken, 16);
        ucm::forget(channel.as_raw_fd());
    }
}
