;; An act that needs nearly all of the work that a service may do for a packet.
(func (export "balboa_act") (local $left i32)
    (local.set $left (i32.const 130000))
    (loop (br_if 0 (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
