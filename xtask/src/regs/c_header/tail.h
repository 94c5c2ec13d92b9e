
/* Functions */

/* The slot of a queue in its doorbell page; kind is an enum balboa_doorbell_queue_code. */
static inline uint32_t balboa_doorbell_slot(uint32_t kind, uint32_t number)
{
    return number % BALBOA_DOORBELL_SLOTS_PER_KIND + kind * BALBOA_DOORBELL_SLOTS_PER_KIND;
}

/* The value to store in a queue's slot. */
static inline uint64_t balboa_doorbell_slot_word(uint32_t number, uint8_t generation, uint32_t index)
{
    return (uint64_t)index
        | ((uint64_t)number << BALBOA_DOORBELL_SLOT_VALUE_NUMBER_SHIFT
           & BALBOA_DOORBELL_SLOT_VALUE_NUMBER_MASK)
        | (uint64_t)generation << BALBOA_DOORBELL_SLOT_VALUE_GENERATION_SHIFT;
}

/* The phase that entry `index` of a ring of 2^log2_entries entries carries once written. */
static inline uint8_t balboa_expected_phase(uint32_t index, uint8_t log2_entries)
{
    return (((uint64_t)index >> log2_entries) & 1) == 0;
}

#endif
