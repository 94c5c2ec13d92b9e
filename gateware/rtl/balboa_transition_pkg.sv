// The state changes of a QP of Reliable Connection, and the attributes of each, as fpga-regs/src/engine/transition.rs has
// them, and the contract's page on queue pairs.
`ifndef BALBOA_TRANSITION_PKG_SV
`define BALBOA_TRANSITION_PKG_SV

package balboa_transition_pkg;
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;

  typedef struct packed {
    logic        exists;
    logic [31:0] required;
    logic [31:0] optional;
  } transition_t;

  localparam logic [31:0] AT_PORT = QP_ATTRIBUTE_MASK_PKEY_INDEX | QP_ATTRIBUTE_MASK_PORT;
  localparam logic [31:0] RETRIES = QP_ATTRIBUTE_MASK_TIMEOUT | QP_ATTRIBUTE_MASK_RETRY_COUNT |
      QP_ATTRIBUTE_MASK_RNR_RETRY;
  localparam logic [31:0] LIVE = QP_ATTRIBUTE_MASK_ACCESS | QP_ATTRIBUTE_MASK_MIN_RNR_TIMER;
  localparam logic [31:0] TO_RTR = QP_ATTRIBUTE_MASK_AV | QP_ATTRIBUTE_MASK_PATH_MTU |
      QP_ATTRIBUTE_MASK_DEST_QPN | QP_ATTRIBUTE_MASK_RQ_PSN | QP_ATTRIBUTE_MASK_MAX_DEST_RD_ATOMIC |
      QP_ATTRIBUTE_MASK_MIN_RNR_TIMER;
  localparam logic [31:0] TO_RTS = RETRIES | QP_ATTRIBUTE_MASK_SQ_PSN | QP_ATTRIBUTE_MASK_MAX_RD_ATOMIC;
  localparam logic [31:0] DRAINED = LIVE | AT_PORT | QP_ATTRIBUTE_MASK_AV | RETRIES |
      QP_ATTRIBUTE_MASK_MAX_RD_ATOMIC | QP_ATTRIBUTE_MASK_MAX_DEST_RD_ATOMIC;
  // Every transition takes them.
  localparam logic [31:0] ALWAYS = QP_ATTRIBUTE_MASK_STATE | QP_ATTRIBUTE_MASK_CURRENT_STATE;

  function automatic transition_t row(input logic [31:0] required, input logic [31:0] optional);
    return '{exists: 1'b1, required: required, optional: optional};
  endfunction

  function automatic transition_t transition_of(input qp_state_t from, input qp_state_t to);
    transition_t none;
    none = '0;
    if (to == QP_STATE_RESET || to == QP_STATE_ERR) begin
      return from != QP_STATE_SQE ? row('0, '0) : none;
    end
    case ({
      from, to
    })
      {QP_STATE_RESET, QP_STATE_INIT} : return row(AT_PORT | QP_ATTRIBUTE_MASK_ACCESS, '0);
      {QP_STATE_INIT, QP_STATE_INIT} :  return row('0, AT_PORT | QP_ATTRIBUTE_MASK_ACCESS);
      {QP_STATE_INIT, QP_STATE_RTR} :   return row(TO_RTR, QP_ATTRIBUTE_MASK_ACCESS | QP_ATTRIBUTE_MASK_PKEY_INDEX);
      {QP_STATE_RTR, QP_STATE_RTS} :    return row(TO_RTS, LIVE);
      {QP_STATE_RTS, QP_STATE_RTS} :    return row('0, LIVE);
      {QP_STATE_RTS, QP_STATE_SQD} :    return row('0, QP_ATTRIBUTE_MASK_EN_SQD_ASYNC_NOTIFY);
      {QP_STATE_SQD, QP_STATE_RTS} :    return row('0, LIVE);
      {QP_STATE_SQD, QP_STATE_SQD} :    return row('0, DRAINED);
      default:                          return none;
    endcase
  endfunction

  // The status of a change of a QP in `from`, as far as the table decides it.
  function automatic admin_status_t change_status(input qp_state_t from, input qp_state_t to, input qp_state_t believed,
                                                  input logic [31:0] mask);
    transition_t found;
    found = transition_of(from, to);
    if ((mask & QP_ATTRIBUTE_MASK_CURRENT_STATE) != '0 && believed != from) return ADMIN_STATUS_BAD_STATE;
    if (!found.exists) return ADMIN_STATUS_BAD_STATE;
    if ((found.required & ~mask) != '0) return ADMIN_STATUS_INVALID;
    if ((mask & ~(found.required | found.optional | ALWAYS)) != '0) return ADMIN_STATUS_INVALID;
    return ADMIN_STATUS_SUCCESS;
  endfunction

  // Whether an attribute is given.
  function automatic logic counts(input logic [31:0] mask, input logic [31:0] attribute);
    return (mask & attribute) != '0;
  endfunction

  // Whether the values of the attributes that are given can be.
  function automatic logic are_attributes_sound(input qp_attributes_t a, input logic [15:0] gid_valid);
    logic [31:0] m;
    m = a.mask;
    return !(counts(
        m, QP_ATTRIBUTE_MASK_PKEY_INDEX
    ) && a.pkey_index != '0) && !(counts(
        m, QP_ATTRIBUTE_MASK_PORT
    ) && a.port != 8'd1) && !(counts(
        m, QP_ATTRIBUTE_MASK_ACCESS
    ) && (a.access & ~ACCESSES) != '0) && !(counts(
        m, QP_ATTRIBUTE_MASK_AV
    ) && (a.sgid_index > 8'd15 || !gid_valid[a.sgid_index[3:0]] || a.dgid == '0 || a.flow_label[31:20] != '0 ||
          a.sl > 8'd15)) && !(counts(
        m, QP_ATTRIBUTE_MASK_PATH_MTU
    ) && (a.path_mtu == '0 || a.path_mtu > 8'd5)) && !(counts(
        m, QP_ATTRIBUTE_MASK_TIMEOUT
    ) && a.timeout > 8'd31) && !(counts(
        m, QP_ATTRIBUTE_MASK_RETRY_COUNT
    ) && a.retry_count > 8'd7) && !(counts(
        m, QP_ATTRIBUTE_MASK_RNR_RETRY
    ) && a.rnr_retry > 8'd7) && !(counts(
        m, QP_ATTRIBUTE_MASK_RQ_PSN
    ) && a.rq_psn[31:24] != '0) && !(counts(
        m, QP_ATTRIBUTE_MASK_SQ_PSN
    ) && a.sq_psn[31:24] != '0) && !(counts(
        m, QP_ATTRIBUTE_MASK_DEST_QPN
    ) && a.dest_qpn[31:24] != '0) && !(counts(
        m, QP_ATTRIBUTE_MASK_MIN_RNR_TIMER
    ) && a.min_rnr_timer > 8'd31) && !(counts(
        m, QP_ATTRIBUTE_MASK_MAX_RD_ATOMIC
    ) && a.max_rd_atomic > 8'd16) && !(counts(
        m, QP_ATTRIBUTE_MASK_MAX_DEST_RD_ATOMIC
    ) && a.max_dest_rd_atomic > 8'd16);
  endfunction
endpackage

`endif
