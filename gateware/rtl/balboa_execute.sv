// Executes a command of the driver's: checks it, changes the tables, and tells the transport.
module balboa_execute
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_number_pkg::*;
  import balboa_port_pkg::*;
  import balboa_transition_pkg::*;
(
    input  logic                             clk,
    input  logic                             rst_n,
    input  logic               [63:0]        timestamp,
    // A command of so many blocks, which is held until it has ended. In that cycle the answer stands.
    input  logic                             begins,
    input  logic               [ 2:0]        count,
    input  logic               [ 2:0][511:0] blocks,
    output logic                             ended,
    output admin_status_t                    status,
    output logic               [31:0]        result,
    output logic               [ 7:0]        generation,
    output logic                             is_idle,
    input  logic                             aborts,
    // Queues, by number: what is there stands from the next cycle on.
    output logic                             finds,
    output logic               [23:0]        find,
    input  logic                             has_qp,
    input  qp_place_t                        found_qp,
    input  logic                             has_cq,
    input  cq_place_t                        found_cq,
    input  logic                             is_cq_used,
    input  logic                             has_rq,
    input  rq_place_t                        found_rq,
    input  logic                             is_rq_used,
    input  rq_t                              found_queue,
    // The queue pair that is worked on: it is read, and stands from the next cycle on.
    output qp_place_t                        place,
    output logic                             reads_qp,
    input  qp_t                              qp,
    input  logic                             is_there,
    // New queues, once their places are drawn.
    input  logic                             is_drawn,
    input  logic                             has_free_qp,
    input  logic               [23:0]        new_qpn,
    output logic                             makes_qp,
    output qp_t                              made_qp,
    output logic                             skips_qp,
    input  logic                             has_free_cq,
    input  logic               [23:0]        new_cqn,
    output logic                             makes_cq,
    output cq_t                              made_cq,
    output logic                             skips_cq,
    input  logic                             has_free_rq,
    input  logic               [23:0]        new_rqn,
    output logic                             makes_rq,
    output rq_t                              made_rq,
    output logic                             skips_rq,
    // The queue pair at `place` changes, and begins anew if it is in RESET.
    output logic                             changes_qp,
    output logic                             resets_qp,
    output qp_state_t                        changed_state,
    output logic               [31:0]        changed_access,
    output logic                             changed_can_read,
    output logic                             changed_tells_drained,
    output logic               [ 7:0]        changed_generation,
    // What was found ends.
    output logic                             ends_qp,
    output logic                             ends_cq,
    output logic                             ends_rq,
    // What the queue pair at `place` has posted goes first: it is to have turns to send, has one, whose work is done, and has
    // more to send. Other queue pairs have their turns meanwhile, but no command and no reset.
    output logic                             pump_asks,
    output logic                             is_pumping,
    input  logic                             pump_begins,
    input  logic                             breaks,
    input  logic                             sender_rests,
    input  logic                             has_more,
    // A completion queue moves to another ring.
    output logic                             resizes,
    output resize_ask_t                      resize_ask,
    input  logic                             cqe_ended,
    input  logic                             has_moved,
    input  logic               [31:0]        moved_end,
    // The limit of a receive queue.
    output logic                             limit_asks,
    output limit_ask_t                       limit_ask,
    input  logic                             limit_ended,
    // Receives that the queue pair took from a shared queue complete. Whether there was one stands at the end.
    output logic                             gives_up,
    output logic                             receive_asks,
    output receive_ask_t                     receive_ask,
    input  logic                             receive_ended,
    input  logic                             has_completed,
    // The GID table.
    input  logic               [15:0]        gid_valid,
    output logic                             sets_gid,
    output logic               [ 3:0]        set_gid,
    output logic                             is_gid_set,
    // Keys: the one that a command names, and what is to become of it.
    output logic                             key_asks,
    output key_ask_t                         key_ask,
    output admin_create_key_t                key_region,
    input  logic                             key_there,
    input  logic                             key_room,
    input  logic                             key_made,
    input  logic               [31:0]        key_new,
    output logic                             makes_key,
    output logic                             changes_key,
    output logic                             ends_key,
    // Host memory.
    output logic                             block_asks,
    output block_ask_t                       block_ask,
    input  logic                             block_ended,
    input  logic                             block_failed,
    // Commands to the transport.
    output logic                             command_asks,
    output port_command_t                    command_ask,
    input  logic                             command_waits,
    input  logic                             command_ended,
    input  port_command_done_t               done
);
  typedef enum logic [4:0] {
    IDLE,
    RUN,
    PROBE,
    PROBED,
    DRAW,
    QP_SEND_CQ,
    QP_RECEIVE_CQ,
    QP_RQ,
    QP_MADE,
    FOUND,
    MODIFY,
    FIRST,
    IN_LINE,
    PUMPED,
    FIND_AGAIN,
    READ_AGAIN,
    LAST,
    MODIFIED,
    NAMED,
    RESIZING,
    MOVED,
    LIMITED,
    GIVE_UP,
    GIVEN_UP,
    TOLD,
    KEY,
    BLOCKS,
    RESPOND,
    RESPONDED,
    DONE
  } state_t;

  state_t                   state;
  state_t                   next;

  // ---- The command

  admin_status_t            next_status;
  logic              [ 1:0] blocks_left;
  logic              [15:0] counter;
  cq_place_t                send_cq;
  cq_place_t                receive_cq;
  rq_place_t                rq;
  logic                     rq_is_shared;
  // A block of the new ring, the last one or the record before all, and the log2 of the ring's blocks.
  logic              [63:0] memory;
  logic                     probes_last;
  logic              [ 4:0] probed_log2;

  admin_header_t            header;
  admin_create_cq_t         a_cq;
  admin_resize_cq_t         a_resize;
  admin_create_rq_t         a_rq;
  admin_create_qp_t         a_qp;
  admin_modify_qp_t         a_change;
  admin_destroy_t           a_named;
  admin_modify_rq_t         a_limit;
  admin_set_gid_t           a_gid;
  admin_set_link_t          a_link;
  admin_modify_key_t        a_rekey;
  qp_attributes_t           attributes;

  assign header     = admin_header_t'(blocks[0]);
  assign a_cq       = admin_create_cq_t'(blocks[0]);
  assign a_resize   = admin_resize_cq_t'(blocks[0]);
  assign a_rq       = admin_create_rq_t'(blocks[0]);
  assign a_qp       = admin_create_qp_t'(blocks[0]);
  assign a_change   = admin_modify_qp_t'(blocks[0]);
  assign a_named    = admin_destroy_t'(blocks[0]);
  assign a_limit    = admin_modify_rq_t'(blocks[0]);
  assign a_gid      = admin_set_gid_t'(blocks[0]);
  assign a_link     = admin_set_link_t'(blocks[0]);
  assign a_rekey    = admin_modify_key_t'(blocks[0]);
  assign attributes = qp_attributes_t'({blocks[2], blocks[1]});

  // ---- Attributes of a queue pair

  qp_state_t     to;
  admin_status_t change;

  assign to     = counts(attributes.mask, QP_ATTRIBUTE_MASK_STATE) ? attributes.state : qp.state;
  assign change = change_status(qp.state, to, attributes.current_state, attributes.mask);

  // ---- Keys

  logic                 is_rekey;
  admin_status_t        region;
  logic          [64:0] region_end;
  logic          [64:0] iova_end;

  // Both commands that have memory have it in the same places.
  assign key_region = admin_create_key_t'(blocks[0]);
  assign is_rekey = header.opcode == ADMIN_OPCODE_MODIFY_KEY;
  assign region_end = 65'((key_region.access & KEY_ACCESS_ZERO_BASED) != '0 ? '0 : key_region.va) +
      65'(key_region.length);
  assign iova_end = 65'(key_region.iova) + 65'(key_region.length);

  // Whether there can be such a region.
  always_comb begin
    region = ADMIN_STATUS_SUCCESS;
    if (key_region.length != '0 && iova_end > 65'd1 << ADDRESS_BITS) region = ADMIN_STATUS_BAD_ADDRESS;
    if (region_end[64]) region = ADMIN_STATUS_INVALID;
    if ((key_region.access & (KEY_ACCESS_REMOTE_WRITE | KEY_ACCESS_REMOTE_ATOMIC)) != '0 &&
        (key_region.access & KEY_ACCESS_LOCAL_WRITE) == '0)
      region = ADMIN_STATUS_INVALID;
  end
  assign makes_key   = state == KEY && header.opcode == ADMIN_OPCODE_CREATE_KEY;
  assign changes_key = state == KEY && is_rekey && region == ADMIN_STATUS_SUCCESS;
  assign ends_key    = state == KEY && header.opcode == ADMIN_OPCODE_DESTROY_KEY;
  assign key_asks = state == RUN && (is_rekey || header.opcode == ADMIN_OPCODE_DESTROY_KEY);
  always_comb begin
    key_ask     = '0;
    key_ask.key = header.opcode == ADMIN_OPCODE_DESTROY_KEY ? a_named.number : a_rekey.key;
  end

  // ---- Queues

  // A queue pair is read where it was found. Those that were worked on meanwhile were read instead of it.
  assign finds = state == RUN || state == QP_SEND_CQ || state == QP_RECEIVE_CQ || state == FIND_AGAIN;
  assign reads_qp = state == FOUND || state == READ_AGAIN;
  always_comb begin
    find = a_named.number[23:0];
    if (header.opcode == ADMIN_OPCODE_MODIFY_QP) find = a_change.qpn[23:0];
    if (header.opcode == ADMIN_OPCODE_CREATE_QP) find = a_qp.send_cqn[23:0];
    if (header.opcode == ADMIN_OPCODE_RESIZE_CQ) find = a_resize.cqn[23:0];
    if (state == QP_SEND_CQ) find = a_qp.receive_cqn[23:0];
    if (state == QP_RECEIVE_CQ) find = a_qp.rqn[23:0];
  end

  logic is_drawing;
  logic is_reserved_number;

  // The memory of a queue is there; numbers are drawn until one is none of those with a meaning of their own.
  assign is_drawing = is_drawn && (state == DRAW || (state == PROBED && block_ended && !block_failed && probes_last));
  always_comb begin
    // Both commands of completion queues have it in the same place.
    probed_log2 = a_cq.log2_entries[4:0];
    if (header.opcode == ADMIN_OPCODE_CREATE_RQ) probed_log2 = a_rq.log2_entries[4:0] + a_rq.log2_stride[4:0];
    if (header.opcode == ADMIN_OPCODE_CREATE_QP) probed_log2 = a_qp.log2_sq_blocks[4:0];
  end
  assign made_cq = '{number: new_cqn, page: a_cq.page, ring: ring_of(a_cq.ring), log2: a_cq.log2_entries[4:0]};
  assign made_rq = '{
          number: new_rqn,
          page: a_rq.page,
          pdn: a_rq.pdn,
          ring: ring_of(a_rq.ring),
          log2: a_rq.log2_entries[4:0],
          log2_stride: a_rq.log2_stride[4:0],
          is_shared: a_rq.kind == ADMIN_RQ_KIND_SHARED
      };
  assign made_qp = '{
          number: new_qpn,
          generation: timestamp[9:2] ^ new_qpn[7:0],
          page: a_qp.page,
          pdn: a_qp.pdn,
          send_cq: send_cq,
          receive_cq: receive_cq,
          rq: rq,
          is_rq_shared: rq_is_shared,
          state: QP_STATE_RESET,
          access : '0,
          can_read: 1'b0,
          tells_drained: 1'b0,
          ring: ring_of(a_qp.sq_ring),
          log2: a_qp.log2_sq_blocks[4:0]
      };
  assign changed_state = to;
  assign resets_qp = to == QP_STATE_RESET;
  assign changed_generation = resets_qp ? qp.generation + 8'd1 : qp.generation;
  always_comb begin
    changed_access = counts(attributes.mask, QP_ATTRIBUTE_MASK_ACCESS) ? attributes.access : qp.access;
    changed_can_read = counts(attributes.mask, QP_ATTRIBUTE_MASK_MAX_RD_ATOMIC) ? attributes.max_rd_atomic != '0 :
        qp.can_read;
    if (resets_qp) begin
      changed_access   = '0;
      changed_can_read = 1'b0;
    end
    changed_tells_drained = qp.tells_drained;
    if (qp.state != QP_STATE_SQD && to == QP_STATE_SQD)
      changed_tells_drained = counts(
        attributes.mask, QP_ATTRIBUTE_MASK_EN_SQD_ASYNC_NOTIFY
      ) && attributes.sqd_notify == 8'd1;
  end
  assign set_gid = a_gid.index[3:0];
  assign is_gid_set = a_gid.valid == 8'd1;

  // ---- Answers

  logic [511:0] response;
  logic is_of_counters;
  logic has_no_counters;

  assign is_of_counters  = header.opcode == ADMIN_OPCODE_QUERY_COUNTERS;
  assign has_no_counters = is_of_counters && done.counters == '0;
  always_comb begin
    response = counter[3] ? done.attributes[1023:512] : done.attributes[511:0];
    if (header.opcode == ADMIN_OPCODE_QUERY_QP && !counter[3]) begin
      // The engine knows better than the transport.
      response[31:0]  = '0;
      response[39:32] = qp.state;
      response[47:40] = qp.state;
      response[95:64] = qp.access;
    end
  end

  // ---- One thing after the other

  logic is_command;
  logic is_change;
  // Turns to send that it may still have before the command: whoever posts for ever keeps no command waiting.
  logic [5:0] turns_left;
  // It went to ERR meanwhile.
  logic is_broken;
  // Receives that the queue pair took from a shared queue are to complete first.
  logic is_shared_end;

  assign is_command = state == QP_MADE || state == MODIFIED || state == TOLD || state == BLOCKS;
  assign is_change = header.opcode == ADMIN_OPCODE_MODIFY_QP;
  // While the transport executes a command, its questions are answered.
  // While others have their turns to send, they have all their other turns, too; its own ends with what breaks it.
  assign is_idle = state == IDLE || ((is_command || state == PUMPED) && command_waits) ||
      (state == IN_LINE && !is_broken);
  assign is_pumping = state == IN_LINE || state == PUMPED;
  assign ended = state == DONE;
  assign resize_ask = '{cq: found_cq, ring: ring_of(a_resize.ring), log2: a_resize.log2_entries[4:0]};
  assign limit_ask = '{rq: found_rq, limit: a_limit.limit[15:0]};
  assign gives_up = state == GIVE_UP || state == GIVEN_UP;
  assign receive_asks = state == GIVE_UP;
  assign receive_ask = '{is_flush: 1'b1, takes_posted: 1'b0, place: place, qp: qp, cqe: flushed_receive(qp)};

  always_comb begin
    next               = state;
    next_status        = status;
    makes_qp           = 1'b0;
    skips_qp           = 1'b0;
    makes_cq           = 1'b0;
    skips_cq           = 1'b0;
    makes_rq           = 1'b0;
    skips_rq           = 1'b0;
    changes_qp         = 1'b0;
    ends_qp            = 1'b0;
    ends_cq            = 1'b0;
    ends_rq            = 1'b0;
    sets_gid           = 1'b0;
    is_shared_end      = 1'b0;
    is_reserved_number = 1'b0;
    block_asks         = 1'b0;
    block_ask          = read_of(memory);
    command_asks       = 1'b0;
    command_ask        = '0;
    limit_asks         = 1'b0;
    resizes            = 1'b0;
    pump_asks          = 1'b0;
    case (state)
      // ---- It is checked
      RUN: begin
        // A status that is given here ends the command.
        next_status = ADMIN_STATUS_INVALID;
        next        = DONE;
        case (header.opcode)
          ADMIN_OPCODE_CREATE_CQ:
          if (a_cq.log2_entries <= 8'(LOG2_CQ) && a_cq.page != '0 && a_cq.vector == '0 && a_cq.ring[5:0] == '0)
            next = PROBE;
          ADMIN_OPCODE_RESIZE_CQ: if (a_cq.log2_entries <= 8'(LOG2_CQ) && a_cq.ring[5:0] == '0) next = PROBE;
          ADMIN_OPCODE_CREATE_RQ: begin
            if (a_rq.kind != ADMIN_RQ_KIND_PRIVATE && a_rq.kind != ADMIN_RQ_KIND_SHARED)
              next_status = ADMIN_STATUS_UNSUPPORTED;
            else if (a_rq.log2_entries <= 8'(LOG2_RQ) && a_rq.log2_stride <= 8'd3 && a_rq.page != '0 &&
                     a_rq.ring[5:0] == '0)
              next = PROBE;
          end
          ADMIN_OPCODE_CREATE_QP: begin
            if (a_qp.kind != QP_TYPE_RC) next_status = ADMIN_STATUS_UNSUPPORTED;
            else if (a_qp.log2_sq_blocks <= 8'(LOG2_SQ) && a_qp.page != '0) next = QP_SEND_CQ;
          end
          ADMIN_OPCODE_MODIFY_QP: if (count >= 3'd3) next = FOUND;
          ADMIN_OPCODE_QUERY_QP, ADMIN_OPCODE_DESTROY_QP, ADMIN_OPCODE_DESTROY_CQ, ADMIN_OPCODE_DESTROY_RQ,
          ADMIN_OPCODE_MODIFY_RQ:
          next = FOUND;
          ADMIN_OPCODE_CREATE_KEY: begin
            if (key_region.kind != ADMIN_KEY_KIND_REGION) next_status = ADMIN_STATUS_UNSUPPORTED;
            else if (region != ADMIN_STATUS_SUCCESS) next_status = region;
            else next = KEY;
          end
          ADMIN_OPCODE_MODIFY_KEY, ADMIN_OPCODE_DESTROY_KEY: next = KEY;
          ADMIN_OPCODE_SET_GID: begin
            command_ask.operation             = is_gid_set ? PORT_COMMAND_SET_GID : PORT_COMMAND_CLEAR_GID;
            command_ask.attributes.sgid_index = a_gid.index;
            command_ask.attributes.dgid       = a_gid.gid;
            command_ask.number                = a_gid.vlan;
            if (a_gid.index < 8'd16 && !(is_gid_set && a_gid.vlan > ADMIN_MAX_VLAN[15:0])) begin
              command_asks = 1'b1;
              next         = TOLD;
            end
          end
          ADMIN_OPCODE_SET_LINK: begin
            command_ask.operation = PORT_COMMAND_SET_LINK;
            command_ask.number    = 16'(a_link.up == 8'd1);
            command_asks          = 1'b1;
            next                  = TOLD;
          end
          ADMIN_OPCODE_QUERY_PORT, ADMIN_OPCODE_QUERY_COUNTERS: begin
            command_ask.operation = header.opcode == ADMIN_OPCODE_QUERY_PORT ? PORT_COMMAND_QUERY_PORT :
                PORT_COMMAND_QUERY_COUNTERS;
            command_asks = 1'b1;
            next = BLOCKS;
          end
          default: next_status = ADMIN_STATUS_UNSUPPORTED;
        endcase
      end
      // ---- New queues: the record in the memory, and the last block behind it, tell whether that is there
      PROBE: begin
        block_asks  = is_reachable(memory);
        next_status = ADMIN_STATUS_BAD_ADDRESS;
        next        = block_asks ? PROBED : DONE;
      end
      PROBED, DRAW: begin
        command_ask.operation = PORT_COMMAND_CREATE;
        command_ask.qpn       = new_qpn;
        command_ask.kind      = a_qp.kind;
        command_ask.page      = a_qp.page;
        if (state == PROBED && block_ended) begin
          next = probes_last ? DRAW : PROBE;
          if (block_failed) next = DONE;
        end
        if (is_drawing) begin
          next_status = ADMIN_STATUS_NO_RESOURCES;
          next        = DONE;
          case (header.opcode)
            ADMIN_OPCODE_CREATE_CQ:
            if (has_free_cq) begin
              is_reserved_number = is_reserved(new_cqn, 1'b0);
              skips_cq           = is_reserved_number;
              makes_cq           = !is_reserved_number;
              next_status        = ADMIN_STATUS_SUCCESS;
            end
            ADMIN_OPCODE_RESIZE_CQ: begin
              next_status = ADMIN_STATUS_NOT_FOUND;
              resizes     = has_cq && a_resize.cqn[31:24] == '0;
              if (resizes) next = RESIZING;
            end
            ADMIN_OPCODE_CREATE_RQ:
            if (has_free_rq) begin
              is_reserved_number = is_reserved(new_rqn, 1'b1);
              skips_rq           = is_reserved_number;
              makes_rq           = !is_reserved_number;
              next_status        = ADMIN_STATUS_SUCCESS;
            end
            default:
            if (has_free_qp) begin
              is_reserved_number = is_reserved(new_qpn, 1'b1);
              skips_qp           = is_reserved_number;
              command_asks       = !is_reserved_number;
              next               = QP_MADE;
            end
          endcase
          if (is_reserved_number) next = DRAW;
        end
      end
      QP_SEND_CQ: begin
        next_status = ADMIN_STATUS_NOT_FOUND;
        next        = has_cq && a_qp.send_cqn[31:24] == '0 ? QP_RECEIVE_CQ : DONE;
      end
      QP_RECEIVE_CQ: next = has_cq && a_qp.receive_cqn[31:24] == '0 ? QP_RQ : DONE;
      QP_RQ: begin
        next = DONE;
        if (has_rq && a_qp.rqn[31:24] == '0) begin
          if (is_rq_used && !found_queue.is_shared) next_status = ADMIN_STATUS_BUSY;
          else if (a_qp.sq_ring[5:0] != '0) next_status = ADMIN_STATUS_INVALID;
          else next = PROBE;
        end
      end
      QP_MADE: begin
        if (command_ended) begin
          // The number of one that is made is counted when it is free again.
          makes_qp    = done.status == ADMIN_STATUS_SUCCESS;
          skips_qp    = !makes_qp;
          next_status = done.status;
          next        = DONE;
        end
      end
      // ---- Queues that are there
      FOUND:         next = header.opcode == ADMIN_OPCODE_MODIFY_QP ? MODIFY : NAMED;
      MODIFY: begin
        next_status = ADMIN_STATUS_NOT_FOUND;
        next        = DONE;
        if (has_qp && is_there && a_change.qpn[31:24] == '0) begin
          if (change != ADMIN_STATUS_SUCCESS) next_status = change;
          else if (!are_attributes_sound(attributes, gid_valid)) next_status = ADMIN_STATUS_INVALID;
          else next = FIRST;
        end
      end
      // Requests that were posted before a command that ends the sending go first, as far as the transport has room.
      FIRST: begin
        pump_asks = qp.state == QP_STATE_RTS && (!is_change || to == QP_STATE_RESET || to == QP_STATE_ERR);
        next      = pump_asks ? IN_LINE : LAST;
      end
      IN_LINE:       if (pump_begins || is_broken) next = PUMPED;
      PUMPED:        if (sender_rests) next = has_more && !is_broken && turns_left != '0 ? IN_LINE : FIND_AGAIN;
      FIND_AGAIN:    next = READ_AGAIN;
      READ_AGAIN:    next = LAST;
      LAST: begin
        next_status                  = ADMIN_STATUS_NOT_FOUND;
        next                         = DONE;
        command_ask.operation        = is_change ? PORT_COMMAND_MODIFY : PORT_COMMAND_DESTROY;
        command_ask.qpn              = find;
        command_ask.attributes       = is_change ? attributes : '0;
        command_ask.attributes.state = to;
        if (has_qp && is_there) begin
          // From here on nothing of one that is destroyed is served.
          ends_qp      = !is_change;
          command_asks = 1'b1;
          next         = is_change ? MODIFIED : TOLD;
        end
      end
      MODIFIED: begin
        if (command_ended) begin
          is_shared_end = done.status == ADMIN_STATUS_SUCCESS && resets_qp && qp.is_rq_shared;
          changes_qp    = done.status == ADMIN_STATUS_SUCCESS && !is_shared_end;
          next_status   = done.status;
          next          = is_shared_end ? GIVE_UP : DONE;
        end
      end
      NAMED: begin
        next_status     = ADMIN_STATUS_NOT_FOUND;
        next            = DONE;
        command_ask.qpn = a_named.number[23:0];
        if (a_named.number[31:24] == '0) begin
          case (header.opcode)
            ADMIN_OPCODE_DESTROY_CQ:
            if (has_cq) begin
              ends_cq     = !is_cq_used;
              next_status = is_cq_used ? ADMIN_STATUS_BUSY : ADMIN_STATUS_SUCCESS;
            end
            ADMIN_OPCODE_DESTROY_RQ:
            if (has_rq) begin
              ends_rq     = !is_rq_used;
              next_status = is_rq_used ? ADMIN_STATUS_BUSY : ADMIN_STATUS_SUCCESS;
            end
            ADMIN_OPCODE_MODIFY_RQ:
            if (has_rq) begin
              next_status = ADMIN_STATUS_INVALID;
              if (found_queue.is_shared && a_limit.limit <= 32'd1 << found_queue.log2) begin
                next_status = ADMIN_STATUS_SUCCESS;
                limit_asks  = 1'b1;
                next        = LIMITED;
              end
            end
            ADMIN_OPCODE_QUERY_QP:
            if (has_qp && is_there) begin
              command_ask.operation = PORT_COMMAND_QUERY;
              command_asks          = 1'b1;
              next                  = BLOCKS;
            end
            default: if (has_qp && is_there) next = FIRST;
          endcase
        end
      end
      // The transport's status is the command's.
      TOLD: begin
        if (command_ended) begin
          sets_gid      = header.opcode == ADMIN_OPCODE_SET_GID && done.status == ADMIN_STATUS_SUCCESS;
          is_shared_end = header.opcode == ADMIN_OPCODE_DESTROY_QP && qp.is_rq_shared;
          next_status   = done.status;
          next          = is_shared_end ? GIVE_UP : DONE;
        end
      end
      RESIZING:      if (cqe_ended) next = MOVED;
      MOVED: begin
        next_status = has_moved ? ADMIN_STATUS_SUCCESS : ADMIN_STATUS_INVALID;
        next        = DONE;
      end
      LIMITED:       if (limit_ended) next = DONE;
      // One after the other, until there is none; then a queue pair goes to RESET, and has another generation.
      GIVE_UP:       next = GIVEN_UP;
      GIVEN_UP: begin
        if (receive_ended) begin
          next       = has_completed ? GIVE_UP : DONE;
          changes_qp = !has_completed && header.opcode == ADMIN_OPCODE_MODIFY_QP;
        end
      end
      KEY: begin
        next_status = ADMIN_STATUS_SUCCESS;
        next        = DONE;
        if (header.opcode != ADMIN_OPCODE_CREATE_KEY && !key_there) next_status = ADMIN_STATUS_NOT_FOUND;
        else if (is_rekey) next_status = region;
        else if (header.opcode == ADMIN_OPCODE_CREATE_KEY && !key_room) next_status = ADMIN_STATUS_NO_RESOURCES;
        else if (header.opcode == ADMIN_OPCODE_CREATE_KEY && !key_made) next = KEY;
      end
      // ---- Answers in blocks: of attributes two, of the port one, of eight counters each
      BLOCKS: begin
        if (command_ended) begin
          next_status = done.status;
          next        = DONE;
          if (done.status == ADMIN_STATUS_SUCCESS) begin
            if (has_no_counters) next_status = ADMIN_STATUS_SUCCESS;
            else if (header.response == '0 || header.response[5:0] != '0) next_status = ADMIN_STATUS_INVALID;
            else if (!is_reachable(header.response)) next_status = ADMIN_STATUS_BAD_ADDRESS;
            else next = RESPOND;
          end
        end
      end
      RESPOND: begin
        block_ask = '{
            is_write: 1'b1,
            is_posted: 1'b0,
            address: header.response + {45'd0, counter, 3'd0},
            block: response
        };
        block_asks = 1'b1;
        next = RESPONDED;
      end
      RESPONDED: begin
        command_ask.operation = PORT_COMMAND_QUERY_COUNTERS;
        command_ask.number    = counter + 16'd8;
        if (block_ended) begin
          next = DONE;
          if (block_failed) begin
            next_status = ADMIN_STATUS_BAD_ADDRESS;
          end else if (blocks_left != 2'd1) begin
            next = RESPOND;
          end else if (is_of_counters && done.counters > 16'd16) begin
            command_asks = 1'b1;
            next         = BLOCKS;
          end
        end
      end
      default:       next = begins ? RUN : IDLE;
    endcase
    if (aborts) next = IDLE;
  end

  always_ff @(posedge clk) begin
    if (!rst_n) state <= IDLE;
    else state <= next;
  end

  always_ff @(posedge clk) begin
    if (state == FIRST) is_broken <= 1'b0;
    else if (breaks) is_broken <= 1'b1;
  end

  // ---- The command, and its answer

  always_ff @(posedge clk) begin
    status <= next_status;
    case (state)
      RUN: begin
        counter     <= '0;
        result      <= '0;
        generation  <= '0;
        // All three commands have it in the same place.
        memory      <= a_cq.ring;
        probes_last <= 1'b0;
      end
      PROBED, DRAW: begin
        result <= header.opcode == ADMIN_OPCODE_CREATE_CQ ? 32'(new_cqn) : 32'(new_rqn);
        if (block_ended && !probes_last) begin
          memory      <= memory + (64'd64 << probed_log2);
          probes_last <= 1'b1;
        end
      end
      QP_SEND_CQ:    send_cq <= found_cq;
      QP_RECEIVE_CQ: receive_cq <= found_cq;
      QP_RQ: begin
        rq           <= found_rq;
        rq_is_shared <= found_queue.is_shared;
        memory       <= a_qp.sq_ring;
      end
      QP_MADE: begin
        result     <= 32'(new_qpn);
        generation <= made_qp.generation;
      end
      MOVED:         result <= moved_end;
      FOUND:         place <= found_qp;
      FIRST:         turns_left <= '1;
      IN_LINE:       if (pump_begins) turns_left <= turns_left - 6'd1;
      MODIFIED:      generation <= done.status == ADMIN_STATUS_SUCCESS ? changed_generation : qp.generation;
      KEY:           result <= makes_key ? key_new : '0;
      BLOCKS: begin
        blocks_left <= 2'd2;
        if (header.opcode == ADMIN_OPCODE_QUERY_PORT || (is_of_counters && done.counters <= 16'd8)) blocks_left <= 2'd1;
      end
      RESPONDED:
      if (block_ended) begin
        counter     <= counter + 16'd8;
        blocks_left <= blocks_left - 2'd1;
      end
      default:       ;
    endcase
  end
endmodule
