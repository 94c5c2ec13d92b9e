//! Tests of access to other processes.

use std::os::unix::net::UnixStream;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, getgid, getpid, getuid};

use super::*;

/// Forks a child that does nothing until it is killed by the guard's drop.
struct Sleeper(Pid);

impl Sleeper {
    fn new() -> Self {
        Self::that_first(|| {})
    }

    fn that_first(does: impl FnOnce()) -> Self {
        // SAFETY: the child makes system calls and waits.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                does();
                loop {
                    nix::unistd::pause();
                }
            }
            ForkResult::Parent { child } => Self(child),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if kill(self.0, Signal::SIGKILL).is_ok() {
            waitpid(self.0, None).unwrap();
        }
    }
}

fn range_of(bytes: &[u8]) -> RemoteRange {
    RemoteRange { base: bytes.as_ptr() as usize, len: bytes.len() }
}

#[test]
fn bytes_move_between_lists_cut_differently() {
    let source: Vec<u8> = (0..=255).collect();
    let child = Sleeper::new();
    let (mut one, mut two, mut three) = ([0; 100], [0; 0], [0; 150]);
    let mut local =
        [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two), IoSliceMut::new(&mut three)];
    let remote = [range_of(&source[6..7]), range_of(&source[7..7]), range_of(&source[7..256])];
    assert_eq!(read_vectored(child.0, &mut local, &remote).unwrap(), 250);
    assert_eq!([&one[..], &three[..]].concat(), &source[6..256]);

    // Writes go to the child's copy of the memory; this process's stays as it is.
    let zeros = [0; 20];
    let written =
        write_vectored(child.0, &mut [IoSlice::new(&zeros)], &[range_of(&source[10..30])]);
    assert_eq!(written.unwrap(), 20);
    let mut back = [1; 30];
    let mut local = [IoSliceMut::new(&mut back)];
    assert_eq!(read_vectored(child.0, &mut local, &[range_of(&source[..30])]).unwrap(), 30);
    assert_eq!((&back[..10], &back[10..]), (&source[..10], &zeros[..]));
    assert_eq!(source[10], 10);
}

#[test]
fn lists_beyond_the_kernels_limit_are_moved_in_several_calls() {
    let source: Vec<u8> = (0..30_000u32).map(|n| (n % 251) as u8).collect();
    // Five bytes a remote range, seven a local one: windows of 1024 never end together.
    let remote: Vec<_> = source.chunks(5).map(range_of).collect();
    let mut target = vec![0; source.len()];
    let mut local: Vec<_> = target.chunks_mut(7).map(IoSliceMut::new).collect();
    assert!(remote.len() > 2 * RANGES_PER_CALL && local.len() > 2 * RANGES_PER_CALL);
    assert_eq!(read_vectored(getpid(), &mut local, &remote).unwrap(), source.len());
    assert_eq!(target, source);

    let mut copy = vec![0u8; source.len()];
    let remote: Vec<_> = copy
        .chunks_mut(11)
        .map(|part| RemoteRange { base: part.as_mut_ptr() as usize, len: part.len() })
        .collect();
    let mut local: Vec<_> = source.chunks(3).map(IoSlice::new).collect();
    assert_eq!(write_vectored(getpid(), &mut local, &remote).unwrap(), source.len());
    assert_eq!(std::hint::black_box(copy), source);
}

#[test]
fn empty_ranges_in_great_number_do_not_stop_a_transfer() {
    let source = [7u8; 10];
    let mut remote = vec![RemoteRange { base: 0, len: 0 }; 3000];
    remote.push(range_of(&source));
    let mut target = [0; 10];
    let (mut empty, mut other) = (vec![[0u8; 0]; 2500], [0u8; 5]);
    let (first, second) = target.split_at_mut(5);
    let mut local: Vec<_> = empty.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    local.push(IoSliceMut::new(first));
    local.push(IoSliceMut::new(second));
    local.push(IoSliceMut::new(&mut other));
    assert_eq!(read_vectored(getpid(), &mut local, &remote).unwrap(), 10);
    assert_eq!((target, other), ([7; 10], [0; 5]));
    assert_eq!(read_vectored(getpid(), &mut [], &remote).unwrap(), 0);
}

#[test]
fn a_hole_in_the_memory_tells_how_much_was_moved() {
    const PAGE: usize = 4096;
    let length = std::num::NonZeroUsize::new(3 * PAGE).unwrap();
    // SAFETY: a new private mapping; its last page is then unmapped again.
    let base = unsafe {
        let base = mmap_anonymous(
            None,
            length,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE,
        )
        .unwrap();
        munmap(base.byte_add(2 * PAGE), PAGE).unwrap();
        base
    };
    let address = base.as_ptr() as usize;
    let remote = [
        RemoteRange { base: address, len: 100 },
        RemoteRange { base: address + 2 * PAGE - 10, len: 30 },
        RemoteRange { base: address, len: 1 },
    ];
    let mut target = [1; 131];
    let error = read_vectored(getpid(), &mut [IoSliceMut::new(&mut target)], &remote).unwrap_err();
    let pid = getpid().as_raw();
    assert_eq!(error, Error::ProcessMemory { pid, moved: 110, total: 131, errno: Errno::EFAULT });
    assert_eq!((&target[..110], target[130]), (&[0; 110][..], 1));

    let error = write_vectored(getpid(), &mut [IoSlice::new(&[2; 131])], &remote).unwrap_err();
    assert_eq!(error, Error::ProcessMemory { pid, moved: 110, total: 131, errno: Errno::EFAULT });

    let hostile = [RemoteRange { base: usize::MAX - 4, len: usize::MAX }; 2];
    let error = read_vectored(getpid(), &mut [IoSliceMut::new(&mut target)], &hostile).unwrap_err();
    assert!(matches!(error, Error::ProcessMemory { moved: 0, .. }), "{error}");
    // SAFETY: the two pages left are ours and no longer used.
    unsafe { munmap(base, 2 * PAGE).unwrap() };
}

#[test]
fn the_end_of_a_process_is_seen_and_its_memory_is_gone() {
    let child = Sleeper::new();
    let handle = PidFd::open(child.0).unwrap();
    assert!(!handle.has_ended().unwrap());
    let pid = child.0;
    drop(child);
    assert!(handle.has_ended().unwrap());
    let mut byte = [0];
    let error = read_vectored(pid, &mut [IoSliceMut::new(&mut byte)], &[range_of(b"x")]);
    assert_eq!(error.unwrap_err().errno(), Some(Errno::ESRCH));
    assert_eq!(PidFd::open(pid).unwrap_err().errno(), Some(Errno::ESRCH));
}

#[test]
fn a_socket_tells_who_is_at_its_other_end() {
    let (one, _two) = UnixStream::pair().unwrap();
    let peer = peer_credentials(one.as_fd()).unwrap();
    assert_eq!(peer.pid, getpid());
    assert_eq!((peer.uid, peer.gid), (getuid().as_raw(), getgid().as_raw()));
    assert!(!PidFd::of_peer(one.as_fd()).unwrap().has_ended().unwrap());
}

#[test]
fn lifting_yamas_restriction_is_harmless_without_yama() {
    let restricted = std::path::Path::new("/proc/sys/kernel/yama/ptrace_scope").exists();
    assert_eq!(allow_ptracer(getpid()).unwrap(), restricted);
}

#[test]
fn the_check_of_reach_says_what_a_copy_would_meet() {
    let (asleep, done) = nix::unistd::pipe().unwrap();
    let closed = Sleeper::that_first(|| {
        let _ = nix::sys::prctl::set_dumpable(false);
        let _ = nix::unistd::write(&done, &[1]);
    });
    nix::unistd::read(&asleep, &mut [0]).unwrap();
    let open = Sleeper::new();
    let gone = {
        let child = Sleeper::new();
        child.0
    };
    let word = [7u8; 8];
    // The first process is root's; the kernel may let every user look at it, or none.
    for pid in [getpid(), open.0, closed.0, gone, Pid::from_raw(1)] {
        let mut copy = [0; 8];
        let copied = read_vectored(pid, &mut [IoSliceMut::new(&mut copy)], &[range_of(&word)]);
        let denied = |errno| matches!(errno, Some(Errno::EPERM | Errno::EACCES));
        let may_not = copied.as_ref().is_err_and(|error| denied(error.errno()));
        let asked = check_reach(pid);
        let refused = asked.as_ref().is_err_and(|error| denied(error.errno()));
        assert_eq!(refused, may_not, "process {pid}: {asked:?}, and a copy: {copied:?}");
    }
    assert!(check_reach(open.0).is_ok());
    assert!(matches!(check_reach(gone).unwrap_err().errno(), Some(Errno::ENOENT | Errno::ESRCH)));
}

#[test]
fn the_mode_of_a_program_has_its_set_user_id_bit() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("sleep");
    // By another process: a child that is forked meanwhile would hold the file open for writing.
    let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&program).status();
    assert!(copied.unwrap().success());
    for mode in [0o755, 0o4755, 0o2755] {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let wanted = program.metadata().unwrap().permissions().mode();
        let mut child = std::process::Command::new(&program).arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let found = program_mode(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.unwrap(), wanted & 0xffff, "{mode:o}");
    }
}

#[test]
fn who_waits_for_an_address_space_is_told_from_who_waits_for_a_file_system() {
    for (stat, wchan, standing) in [
        ("7 (cards) R 1 2", "0", Standing::Runnable),
        ("7 (a) R b) D 1 2", "process_vm_rw_core.constprop.0", Standing::Locked),
        ("7 (cards) D 1 2", "__get_user_pages_locked", Standing::Locked),
        ("7 (cards) D 1 2", "request_wait_answer", Standing::Asleep),
        ("7 (cards) S 1 2", "handle_userfault", Standing::Asleep),
        ("7 (cards) D 1 2", "0", Standing::Asleep),
        ("", "", Standing::Asleep),
    ] {
        assert_eq!(Standing::from_files(stat, wchan), standing, "{stat}: {wchan}");
    }
    let own = nix::unistd::gettid();
    assert_eq!(Standing::of(own), Standing::Runnable);
}
