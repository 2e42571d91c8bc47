//! Loads a system call filter that was compiled when the program was built.

use rustix::io::Errno;

use super::check;

/// One compiled program: eight bytes an instruction, in the machine's byte order.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static [u8]);

/// Puts the filter in force for this process and all its descendants. Needs no-new-privileges.
pub fn install(program: Program) -> Result<(), Errno> {
    let instructions: Vec<libc::sock_filter> = program
        .0
        .chunks_exact(8)
        .map(|raw| libc::sock_filter {
            code: u16::from_ne_bytes([raw[0], raw[1]]),
            jt: raw[2],
            jf: raw[3],
            k: u32::from_ne_bytes([raw[4], raw[5], raw[6], raw[7]]),
        })
        .collect();
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?;
    let program = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `length` instructions from a vector that outlives the call and does
    // not write to it.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    check(result).map(|_| ())
}
