"""shardwise.torch.lightning: checkpoints of Lightning's Trainer."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
lightning = pytest.importorskip("lightning", reason="needs lightning, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from lightning.pytorch.callbacks import ModelCheckpoint
from shardwise.torch.lightning import CheckpointIO

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(lightning.LightningModule):
    def __init__(self, width=3, extra=None):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(4)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))
        self.losses = []

    def training_step(self, batch, index):
        loss = self.layers(batch).square().mean() + self.layers[0].weight.square().mean()
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def fit(folder, model, epochs, path=None):
    data = torch.utils.data.DataLoader(torch.randn(20, 4, generator=torch.Generator().manual_seed(6)), batch_size=4)
    keep = ModelCheckpoint(folder, monitor="loss", save_top_k=1, save_last=True)
    trainer = lightning.Trainer(max_epochs=epochs, plugins=[CheckpointIO()], callbacks=[keep], accelerator="cpu", logger=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, data, ckpt_path=path)
    return trainer


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    straight = Model()
    fit(tmp_path / "straight", straight, 2)
    begun = Model()
    fit(tmp_path / "begun", begun, 1)
    last = tmp_path / "begun" / "last.ckpt"
    assert sw.verify(last)
    resumed = Model()
    trainer = fit(tmp_path / "begun", resumed, 2, last)
    assert trainer.global_step == 10 and resumed.losses == straight.losses[5:]
    assert all(torch.equal(a, b) for a, b in zip(resumed.state_dict().values(), straight.state_dict().values()))
    # The best one and the last one stay; others have been removed.
    assert len(list((tmp_path / "begun").iterdir())) == 2
    weights = swt.load_state_dict(last, "state_dict.*")["state_dict"]
    assert list(weights) == list(resumed.state_dict())


def test_all_of_a_checkpoint_comes_back(tmp_path):
    model = Model(width=5)
    trainer = fit(tmp_path, model, 1)
    path = tmp_path / "own"
    trainer.save_checkpoint(path)
    checkpoint = CheckpointIO().load_checkpoint(path)
    expected = trainer._checkpoint_connector.dump_checkpoint()
    assert checkpoint.keys() == expected.keys()
    assert checkpoint["hyper_parameters"] == {"width": 5, "extra": None}
    for name in ("loops", "lr_schedulers", "epoch", "global_step", "pytorch-lightning_version"):
        assert checkpoint[name] == expected[name]
    moment, own = (of["optimizer_states"][0]["state"][0]["exp_avg"] for of in (checkpoint, expected))
    assert torch.equal(moment, own)
    assert torch.equal(checkpoint["callbacks"].popitem()[1]["best_model_score"], expected["callbacks"].popitem()[1]["best_model_score"])


def test_what_cannot_be_stored_is_refused_by_name(tmp_path):
    trainer = fit(tmp_path, Model(extra=fit), 0)
    with pytest.raises(TypeError, match="'hyper_parameters.extra': .*function cannot be stored"):
        trainer.save_checkpoint(tmp_path / "own")
    assert not (tmp_path / "own").exists()
    with pytest.raises(sw.InvalidArgument, match="found storage_options 1, needed is None"):
        CheckpointIO().save_checkpoint({}, tmp_path / "own", 1)
    with pytest.raises(sw.InvalidArgument, match="needed is a device"):
        CheckpointIO().load_checkpoint(tmp_path / "own", {"cuda:0": "cpu"})
    CheckpointIO().remove_checkpoint(tmp_path / "own")  # the folder does not exist
