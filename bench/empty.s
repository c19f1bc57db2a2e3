// This file lets packet_ends.go declare functions that another package defines.
