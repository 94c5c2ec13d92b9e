//! The seccomp filter that hides RDMA netlink.

use seccompiler::{BpfProgram, sock_filter};

/// Offsets in `struct seccomp_data`; arguments are 64 bits wide, their low half is meant.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const DOMAIN: u32 = argument(0);
const PROTOCOL: u32 = argument(2);

const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
const NETLINK_RDMA: u32 = 20;
const SYS_SOCKET: u32 = libc::SYS_socket as u32;

/// `AUDIT_ARCH_*` of this build.
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
/// `AUDIT_ARCH_*` of this build.
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

const fn argument(index: u32) -> u32 {
    let low_half = if cfg!(target_endian = "little") { 0 } else { 4 };
    16 + index * 8 + low_half
}

/// Installs the filter for this process and all its descendants, and sets no_new_privs.
///
/// # Errors
/// When the kernel refuses.
pub fn install() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&program())
}

/// `socket(AF_NETLINK, any, NETLINK_RDMA)` fails with EPROTONOSUPPORT, as on a kernel without RDMA;
/// everything else passes, programs of another architecture too.
fn program() -> BpfProgram {
    let unless = |value, skip| jump_unless_equal(value, skip);
    vec![
        load(ARCHITECTURE),
        unless(NATIVE, 7),
        load(NUMBER),
        unless(SYS_SOCKET, 5),
        load(DOMAIN),
        unless(AF_NETLINK, 3),
        load(PROTOCOL),
        unless(NETLINK_RDMA, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

const fn instruction(code: u32, jump_false: u8, operand: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: jump_false, k: operand }
}

const fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset)
}

const fn jump_unless_equal(value: u32, skip: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, value)
}

const fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do with a system call.
    fn judge(architecture: u32, number: u32, arguments: [u32; 3]) -> u32 {
        let program = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        offset => arguments[(offset as usize - 16) / 8],
                    };
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if accumulator == step.k { step.jt } else { step.jf });
                }
                _ => return step.k,
            }
        }
    }

    #[test]
    fn only_the_rdma_netlink_socket_fails() {
        let allow = libc::SECCOMP_RET_ALLOW;
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
        for kind in [libc::SOCK_RAW as u32, 0x8_0003] {
            assert_eq!(judge(NATIVE, SYS_SOCKET, [16, kind, 20]), refuse);
        }
        assert_eq!(judge(NATIVE, SYS_SOCKET, [16, 3, 0]), allow, "NETLINK_ROUTE");
        assert_eq!(judge(NATIVE, SYS_SOCKET, [2, 3, 20]), allow, "another domain");
        assert_eq!(judge(NATIVE, SYS_SOCKET + 1, [16, 3, 20]), allow, "another call");
        assert_eq!(judge(0x4000_0003, SYS_SOCKET, [16, 3, 20]), allow, "another architecture");
    }
}
