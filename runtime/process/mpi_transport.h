#pragma once

#include <memory>

#include "shardwise/runtime/process/transport.h"

namespace shardwise {

/// Messages by MPI between all processes of MPI_COMM_WORLD. Every process makes it.
///
/// If MPI is not initialised, initialises it for MPI_THREAD_MULTIPLE, and then finalises it at the
/// end of the program. If MPI gives less than that, or was initialised for MPI_THREAD_SERIALIZED,
/// the program itself must make no MPI call at the same time as Shardwise; less than SERIALIZED is
/// refused (unsupported). It uses a communicator of its own. Nothing in MPI wakes up a thread, so a
/// thread that waits asks again after 20 us to 1 ms.
///
/// If a process dies, MPI decides what happens: mostly mpirun ends the whole job.
std::shared_ptr<Transport> mpi_transport();

/// The processes of another communicator, by its Fortran handle: MPI_Comm_c2f(comm) in C,
/// comm.py2f() in mpi4py. The communicator may be freed afterwards.
std::shared_ptr<Transport> mpi_transport(int fortran_communicator);

}  // namespace shardwise
