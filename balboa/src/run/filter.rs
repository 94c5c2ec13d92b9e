//! The seccomp filters that have RDMA netlink answered, or refused.

use std::ops::Range;

use hostmem::seccomp::Instruction;

/// Offsets in `struct seccomp_data`; arguments are 64 bits wide, their low half is meant.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const DOMAIN: u32 = argument(0);
const PROTOCOL: u32 = argument(2);
const DESCRIPTOR: u32 = argument(0);

const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
const NETLINK_RDMA: u32 = 20;
const SYS_SOCKET: u32 = libc::SYS_socket as u32;
const SYS_SENDTO: u32 = libc::SYS_sendto as u32;
const SYS_SENDMSG: u32 = libc::SYS_sendmsg as u32;

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

/// `socket(AF_NETLINK, any, NETLINK_RDMA)` fails with EPROTONOSUPPORT, as on a kernel without RDMA;
/// everything else passes, programs of another architecture too.
pub fn refusing() -> Vec<Instruction> {
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

/// The listener is told of that call, and of `sendto` and `sendmsg` on descriptors of these numbers;
/// everything else passes.
pub fn answering(numbers: &Range<u32>) -> Vec<Instruction> {
    vec![
        load(ARCHITECTURE),
        unless(NATIVE, 12),
        load(NUMBER),
        when(SYS_SENDTO, 6),
        when(SYS_SENDMSG, 5),
        unless(SYS_SOCKET, 8),
        load(DOMAIN),
        unless(AF_NETLINK, 6),
        load(PROTOCOL),
        jump(libc::BPF_JEQ, NETLINK_RDMA, 3, 4),
        load(DESCRIPTOR),
        jump(libc::BPF_JGE, numbers.start, 0, 2),
        jump(libc::BPF_JGE, numbers.end, 1, 0),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

const fn instruction(code: u32, [jt, jf]: [u8; 2], k: u32) -> Instruction {
    Instruction { code: code as u16, jt, jf, k }
}

const fn load(offset: u32) -> Instruction {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, [0, 0], offset)
}

/// Compares, and leaves out so many instructions where it holds, or so many where it does not.
const fn jump(comparison: u32, value: u32, then: u8, otherwise: u8) -> Instruction {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, [then, otherwise], value)
}

const fn unless(value: u32, skip: u8) -> Instruction {
    jump(libc::BPF_JEQ, value, 0, skip)
}

const fn when(value: u32, skip: u8) -> Instruction {
    jump(libc::BPF_JEQ, value, skip, 0)
}

const fn answer(action: u32) -> Instruction {
    instruction(libc::BPF_RET | libc::BPF_K, [0, 0], action)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    const TELL: u32 = libc::SECCOMP_RET_USER_NOTIF;

    /// The kernel's verdict on a system call.
    fn judge(program: &[Instruction], architecture: u32, number: u32, arguments: [u32; 3]) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = &program[at];
            at += 1;
            let holds = match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        offset => arguments[(offset as usize - 16) / 8],
                    };
                    continue;
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    accumulator == step.k
                }
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => {
                    accumulator >= step.k
                }
                _ => return step.k,
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    #[test]
    fn of_sockets_only_the_rdma_netlink_socket_is_refused_or_told_of() {
        for (program, what) in [(refusing(), REFUSE), (answering(&(992..1024)), TELL)] {
            let judge =
                |architecture, number, arguments| judge(&program, architecture, number, arguments);
            for kind in [libc::SOCK_RAW as u32, 0x8_0003] {
                assert_eq!(judge(NATIVE, SYS_SOCKET, [16, kind, 20]), what);
            }
            assert_eq!(judge(NATIVE, SYS_SOCKET, [16, 3, 0]), ALLOW, "NETLINK_ROUTE");
            assert_eq!(judge(NATIVE, SYS_SOCKET, [2, 3, 20]), ALLOW, "another domain");
            assert_eq!(judge(NATIVE, SYS_SOCKET + 1, [16, 3, 20]), ALLOW, "another call");
            assert_eq!(judge(0x4000_0003, SYS_SOCKET, [16, 3, 20]), ALLOW, "another architecture");
        }
    }

    #[test]
    fn sending_is_told_of_on_the_numbers_that_are_watched() {
        let program = answering(&(992..1024));
        for call in [SYS_SENDTO, SYS_SENDMSG] {
            for (number, what) in
                [(0, ALLOW), (991, ALLOW), (992, TELL), (1023, TELL), (1024, ALLOW)]
            {
                assert_eq!(judge(&program, NATIVE, call, [number, 0, 0]), what, "{number}");
                assert_eq!(judge(&refusing(), NATIVE, call, [number, 0, 0]), ALLOW);
            }
            assert_eq!(judge(&program, NATIVE, call, [u32::MAX, 0, 0]), ALLOW);
        }
        let write = libc::SYS_write as u32;
        assert_eq!(judge(&program, NATIVE, write, [992, 0, 0]), ALLOW);
    }
}
