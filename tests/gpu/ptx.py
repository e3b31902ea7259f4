"""Programs of the probes in PTX, which the driver compiles: no compiler needs to be there."""

from __future__ import annotations

_HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 128 .b8 memory[];\n"


def _entry(name: str, parameters: str, body: str) -> str:
    """A kernel whose parameters have 64 bits each, and are loaded to registers of their names."""
    names = parameters.split()
    declared = ", ".join(f".param .u64 {name}_{each}" for each in names)
    loaded = "".join(f"ld.param.u64 %{each}, [{name}_{each}];\n" for each in names)
    registers = ".reg .pred %p<4>;\n.reg .b32 %r<64>;\n.reg .b64 %d<16>;\n.reg .f32 %f<80>;\n"
    registers += "".join(f".reg .b64 %{each};\n" for each in names)
    return f"{_HEAD}.visible .entry {name}({declared}) {{\n{registers}{loaded}{body}\nret;\n}}\n"


# a launch of a chain: when a block began, when the launch before had ended, when its own work was done, and where
CHAINED = _entry(
    "chained",
    "times cycles",
    """
mov.u64 %d0, %clock64;
griddepcontrol.launch_dependents;
griddepcontrol.wait;
mov.u64 %d1, %clock64;
AGAIN:
mov.u64 %d2, %clock64;
sub.u64 %d3, %d2, %d1;
setp.lt.u64 %p0, %d3, %cycles;
@%p0 bra AGAIN;
mov.u32 %r0, %tid.x;
setp.ne.u32 %p1, %r0, 0;
@%p1 bra END;
mov.u32 %r1, %ctaid.x;
mul.wide.u32 %d4, %r1, 32;
add.u64 %d4, %times, %d4;
mov.u32 %r2, %smid;
cvt.u64.u32 %d5, %r2;
st.global.v2.u64 [%d4], {%d0, %d1};
st.global.v2.u64 [%d4 + 16], {%d2, %d5};
END:""",
)

# one thread of a block copies its share of memory, stage after stage, into a ring of stages; each has a barrier below them
STREAM = _entry(
    "stream",
    "source stages depth size",
    """
mov.u32 %r0, %tid.x;
setp.ne.u32 %p0, %r0, 0;
@%p0 bra END;
mov.u64 %d0, memory;
cvta.to.shared.u64 %d0, %d0;
cvt.u32.u64 %r1, %d0;
cvt.u32.u64 %r2, %stages;
cvt.u32.u64 %r3, %depth;
cvt.u32.u64 %r4, %size;
add.u32 %r5, %r1, 1024;
mov.u32 %r6, %ctaid.x;
mul.lo.u32 %r7, %r6, %r2;
mul.wide.u32 %d1, %r7, %r4;
add.u64 %d1, %source, %d1;
mov.u32 %r8, 0;
INIT:
shl.b32 %r9, %r8, 3;
add.u32 %r9, %r1, %r9;
mbarrier.init.shared::cta.b64 [%r9], 1;
add.u32 %r8, %r8, 1;
setp.lt.u32 %p1, %r8, %r3;
@%p1 bra INIT;
fence.mbarrier_init.release.cluster;
mov.u32 %r8, 0;
mov.u32 %r10, 0;
FILL:
shl.b32 %r9, %r8, 3;
add.u32 %r9, %r1, %r9;
mad.lo.u32 %r11, %r8, %r4, %r5;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], %r4;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d1], %r4, [%r9];
add.u64 %d1, %d1, %size;
add.u32 %r8, %r8, 1;
setp.lt.u32 %p1, %r8, %r3;
@%p1 bra FILL;
mov.u32 %r8, 0;
mov.u32 %r12, 0;
NEXT:
shl.b32 %r9, %r8, 3;
add.u32 %r9, %r1, %r9;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r9], %r12;
@!%p2 bra WAIT;
add.u32 %r13, %r10, %r3;
setp.ge.u32 %p1, %r13, %r2;
@%p1 bra FULL;
mad.lo.u32 %r11, %r8, %r4, %r5;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], %r4;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d1], %r4, [%r9];
add.u64 %d1, %d1, %size;
FULL:
add.u32 %r8, %r8, 1;
setp.lt.u32 %p1, %r8, %r3;
@%p1 bra SAME;
mov.u32 %r8, 0;
xor.b32 %r12, %r12, 1;
SAME:
add.u32 %r10, %r10, 1;
setp.lt.u32 %p1, %r10, %r2;
@%p1 bra NEXT;
END:""",
)

# blocks that wait for each other, so many times; one that has waited for too long leaves, and so do the others then
GRID = _entry(
    "grid",
    "counter turns",
    """
mov.u32 %r0, %tid.x;
mov.u32 %r1, %nctaid.x;
cvt.u32.u64 %r2, %turns;
mov.u32 %r3, 0;
mov.u32 %r4, 0;
mov.u32 %r7, 1;
TURN:
add.u32 %r4, %r4, %r1;
bar.sync 0;
setp.ne.u32 %p0, %r0, 0;
@%p0 bra JOIN;
red.release.gpu.global.add.u32 [%counter], %r7;
mov.u32 %r5, 0;
SPIN:
ld.acquire.gpu.global.u32 %r6, [%counter];
add.u32 %r5, %r5, 1;
setp.gt.u32 %p1, %r5, 4000000;
@%p1 bra END;
setp.lt.u32 %p2, %r6, %r4;
@%p2 bra SPIN;
JOIN:
bar.sync 0;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p3, %r3, %r2;
@%p3 bra TURN;
END:""",
)


def rates(n_tiles: int, *, dequantises: bool) -> str:
    """A loop of products of 16 x 64 weights and 64 x 8 halves for each of some tiles of tokens.

    Weights are nibbles in words, which the loop makes halves of with scales and minima, or they are halves already. A turn
    makes its words of the one before it, so that no compiler takes anything out of the loop.
    """
    n_sums = 4 * n_tiles
    names = [f"%f{i}" for i in range(n_sums)]
    sums = [f"mov.f32 {name}, 0f00000000;" for name in names]
    body = [
        "mov.u32 %r0, %tid.x;",
        "cvt.u32.u64 %r1, %turns;",
        "cvt.u32.u64 %r2, %values;",
        *sums,
        *(f"add.u32 %r{10 + i}, %r0, {i};" for i in range(16)),
        "mov.u32 %r3, 0;",
        "TURN:",
    ]
    for word in range(4):
        w, up, made = f"%r{10 + word}", "%r30", [f"%r{40 + i}" for i in range(4)]
        if dequantises:
            body += [f"add.u32 {w}, {w}, %r3;", f"shr.u32 {up}, {w}, 8;"]
            for part, (source, mask) in enumerate(((w, 0x000F000F), (w, 0x00F000F0), (up, 0x000F000F), (up, 0x00F000F0))):
                half, scale, least = made[part], f"%r{31 + part % 2}", f"%r{33 + part % 2}"
                selected = (0x1010, 0x3232)
                body += [
                    f"prmt.b32 {to}, %r{14 + part % 2}, %r3, {how};" for to, how in zip((scale, least), selected, strict=True)
                ]
                body.append(f"lop3.b32 {half}, {source}, {mask}, 0x64006400, 0xea;")
                if part % 2:
                    body += ["mov.u32 %r35, 0x2C002C00;", "mov.u32 %r36, 0xD400D400;"]
                    body.append(f"fma.rn.f16x2 {half}, {half}, %r35, %r36;")
                else:
                    body += ["mov.u32 %r35, 0x64006400;", f"sub.rn.f16x2 {half}, {half}, %r35;"]
                body.append(f"fma.rn.f16x2 {half}, {half}, {scale}, {least};")
        else:
            made = [f"%r{10 + (word + i) % 4}" for i in range(4)]
        for tile in range(n_tiles):
            four = ", ".join(names[4 * tile : 4 * tile + 4])
            body.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{four}}}, {{{', '.join(made)}}}, "
                f"{{%r{18 + (tile + word) % 8}, %r2}}, {{{four}}};"
            )
    body += ["add.u32 %r3, %r3, 1;", "setp.lt.u32 %p0, %r3, %r1;", "@%p0 bra TURN;"]
    body += [f"add.f32 %f0, %f0, {name};" for name in names[1:]]
    body += ["setp.neu.f32 %p1, %f0, 0f7F800000;", "@%p1 bra END;", "st.global.f32 [%values], %f0;", "END:"]
    return _entry("rates", "values turns", "\n".join(body))


PROGRAMS = {
    "chained": CHAINED,
    "stream": STREAM,
    "grid": GRID,
    **{f"products of {8 * n}": rates(n, dequantises=False) for n in (1, 2, 8)},
    **{f"products of {8 * n}, dequantised": rates(n, dequantises=True) for n in (1, 2, 8)},
}
"""By name; each has one kernel, of the name that its text has."""
