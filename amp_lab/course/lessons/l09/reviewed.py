"""The code under review in exercise 9.5: a Trainer and its launcher, such as people publish them.

Both are texts, to be shown on the page, and real programs: tests run them to prove what is claimed of them. Their
faults are the point; nothing else in this package uses them.
"""

TRAINER = """\
class Trainer:
    def __init__(self, args, model, criterion, optimizer):
        self.args, self.model = args, model
        self.criterion, self.optimizer = criterion, optimizer

    def train(self, train_loader, dev_loader=None, train_sampler=None):
        device = self.args.device
        if self.args.use_amp:
            scaler = torch.amp.GradScaler(device)
        for epoch in range(1, self.args.epochs + 1):
            train_sampler.set_epoch(epoch)
            for inputs, targets in train_loader:
                self.model.train()
                if self.args.use_amp:
                    with torch.autocast(device, torch.float16):
                        loss = self.criterion(self.model(inputs), targets)
                    torch.distributed.barrier()
                    scaler.scale(loss).backward()
                    scaler.step(self.optimizer)
                    scaler.update()
                else:
                    loss = self.criterion(self.model(inputs), targets)
                    torch.distributed.barrier()
                    loss.backward()
                    self.optimizer.step()

    def save(self, path):
        torch.save({"model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict()}, path)
"""
LAUNCH = """\
def worker(rank, world_size):
    dist.init_process_group("nccl", init_method="tcp://localhost:12345",
                            world_size=world_size, rank=rank)
    torch.cuda.set_device(rank)
    model.cuda()
    model = DistributedDataParallel(model, device_ids=[rank])
    trainer = Trainer(args, model, criterion, make_optimizer(model))
    trainer.train(train_loader, dev_loader, train_sampler)

if __name__ == "__main__":
    mp.spawn(worker, nprocs=args.gpus, args=(args.gpus,))
"""
